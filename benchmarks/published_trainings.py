"""Plans of published trainings against what was published: `python -m benchmarks.published_trainings`.

The model's shape, its tokens, the devices and the efficiency or throughput that were published go in; days,
device-hours or seconds of a step come out of `bexplore.planning`. Operations: 6 N + 12 L w s a token, w the width of
attention (PaLM, arXiv 2204.02311, appendix B); with full recomputation four thirds of it. What a figure shows depends
on where its efficiency is from: `Shows`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bexplore.planning.plan import SECONDS_PER_DAY, Plan
from bexplore.planning.planner import make_plans
from bexplore.planning.request import Amount, Devices, PlanRequest, Work
from bexplore.planning.step_costs import StepCosts

TABLE = Path(__file__).parent / "results" / "published_trainings.md"
WITHIN = 0.10
A100, H100, TPU_V4, TPU_V3 = 312e12, 989e12, 275e12, 123e12  # dense operations of 16 bits a second, as published
RECOMPUTED = 4 / 3
SECONDS_PER_UNIT = {"days": SECONDS_PER_DAY, "device-hours": 3600.0, "s a step": 1.0}


class Shows(StrEnum):
    """What the agreement of a plan with a published figure shows, the least first."""

    IDENTITY = "identity"
    PROJECTION = "projection"
    CALENDAR = "calendar"
    INDEPENDENT = "independent"


MEANING = {
    Shows.IDENTITY: "its authors computed the efficiency from the same time, so that the operations alone are compared",
    Shows.PROJECTION: "its authors planned by the same formula: nothing was trained for the time that is published",
    Shows.CALENDAR: "one publication; the efficiency was measured on steps, the time by the calendar",
    Shows.INDEPENDENT: "the efficiency is from one publication, the calendar or the device-hours from another",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training as it was published.

    Attributes:
        name: Of the model.
        num_parameters: Whose products are counted: without an input embedding where the source leaves it out.
        num_layers: Of the model.
        attention_width: Heads times the size of a head.
        sequence_length: Tokens of a sample.
        tokens: Of the training, or of the part that was published.
        batch_samples: Global batch, the last of a ramp.
        num_devices: That trained.
        model_parallel: Devices that share one replica, where the batch has fewer samples than there are devices.
        peak_flops_per_s: Of a device.
        efficiency: `mfu`, `hfu` or `tokens/s` of a device, and its value.
        published: The outcome, and its unit.
        source: Where it stands.
        shows: What agreement shows.
        remark: What it is, and why it differs.
        is_outside: Whether it is known to be outside the limit; the remark says why.
    """

    name: str
    num_parameters: float
    num_layers: int
    attention_width: int
    sequence_length: int
    tokens: float
    batch_samples: int
    num_devices: int
    peak_flops_per_s: float
    efficiency: tuple[str, float]
    published: tuple[float, str]
    source: str
    shows: Shows
    remark: str = ""
    model_parallel: int = 1
    is_outside: bool = False

    @property
    def is_whole_training(self) -> bool:
        """Whether a training that took place has its days or device-hours here, and no projection or single step."""
        return self.shows is not Shows.PROJECTION and self.published[1] != "s a step"

    @property
    def costs(self) -> StepCosts:
        """What a trace would tell of its step."""
        width, length = self.attention_width, self.sequence_length
        flops = (6 * self.num_parameters + 12 * self.num_layers * width * length) * length
        return StepCosts(
            title=self.name,
            origin="published",
            model_flops=flops,
            hardware_flops=RECOMPUTED * flops,
            num_parameters=round(self.num_parameters),
            peak_flops_per_s=self.peak_flops_per_s,
            tokens_per_sample=self.sequence_length,
            batch_size=self.batch_samples,
        )

    def plan(self) -> Plan:
        """Return its plan."""
        kind, value = self.efficiency
        request = PlanRequest(
            work=Work(tokens=self.tokens),
            devices=(Devices(number=self.num_devices),),
            tensor_parallel_degree=self.model_parallel,
            mfu=value if kind == "mfu" else None,
            hfu=value if kind == "hfu" else None,
            rate=Amount(number=value, is_tokens=True) if kind == "tokens/s" else None,
        )
        return make_plans(self.costs, request).plans[0]

    def planned(self) -> float:
        """Return the outcome of the plan in the unit of what was published."""
        plan, unit = self.plan(), self.published[1]
        if unit == "s a step":
            return plan.step_time_s
        assert plan.training_time_s is not None and plan.device_hours is not None  # the tokens are given
        return plan.device_hours if unit == "device-hours" else plan.training_time_s / SECONDS_PER_DAY


def _gpt3(name: str, devices: int, tflops: float, days: float, remark: str) -> Training:
    return Training(
        name=name, num_parameters=174.6e9, num_layers=96, attention_width=12288, sequence_length=2048, tokens=300e9,
        batch_samples=1536, num_devices=devices, peak_flops_per_s=A100, efficiency=("hfu", tflops * 1e12 / A100),
        published=(days, "days"), source="arXiv 2104.04473, section 5.1 and table 2", shows=Shows.PROJECTION,
        remark=remark,
    )  # fmt: skip


def _mt_nlg(devices: int, tflops: float, step_s: float) -> Training:
    return Training(
        name=f"Megatron-Turing NLG 530B, {devices} devices", num_parameters=529.6e9, num_layers=105,
        attention_width=20480, sequence_length=2048, tokens=270e9, batch_samples=1920, num_devices=devices,
        peak_flops_per_s=A100, efficiency=("hfu", tflops * 1e12 / A100), published=(step_s, "s a step"),
        source="arXiv 2201.11990, section 2.4", shows=Shows.IDENTITY, model_parallel=280,
    )  # fmt: skip


TRAININGS = (
    Training(
        name="LLaMA 65B", num_parameters=65.2e9, num_layers=80, attention_width=8192, sequence_length=2048,
        tokens=1.4e12, batch_samples=2048, num_devices=2048, peak_flops_per_s=A100, efficiency=("tokens/s", 380),
        published=(1_022_362, "device-hours"), source="arXiv 2302.13971, section 2.4 and table 15",
        shows=Shows.IDENTITY,
        remark="about 21 days; the hours follow from the same rate, as it seems",
    ),
    Training(
        name="TinyLlama 1.1B", num_parameters=1.1e9, num_layers=22, attention_width=2048, sequence_length=2048,
        tokens=300e9, batch_samples=1024, num_devices=16, peak_flops_per_s=A100, efficiency=("tokens/s", 24_000),
        published=(3456, "device-hours"), source="jzhang38/TinyLlama, README.md",
        shows=Shows.IDENTITY, remark="of each 300B tokens",
    ),
    Training(
        name="BLOOM 176B", num_parameters=176.247e9, num_layers=70, attention_width=14336, sequence_length=2048,
        tokens=366e9, batch_samples=2048, num_devices=384, peak_flops_per_s=A100, efficiency=("hfu", 149.77e12 / A100),
        published=(1_082_990, "device-hours"), source="arXiv 2211.05100; bigscience, train/tr11-176B-ml/README.md",
        shows=Shows.INDEPENDENT,
        remark="the hours hold a ramp of the batch, evaluation, checkpoints and failures",
    ),
    Training(
        name="BLOOM 176B, a step", num_parameters=176.247e9, num_layers=70, attention_width=14336,
        sequence_length=2048, tokens=366e9, batch_samples=2048, num_devices=384, peak_flops_per_s=A100,
        efficiency=("hfu", 149.77e12 / A100), published=(104.7, "s a step"),
        source="bigscience, train/tr11-176B-ml/README.md",
        shows=Shows.IDENTITY,
    ),
    Training(
        name="OPT-175B", num_parameters=175e9, num_layers=96, attention_width=12288, sequence_length=2048,
        tokens=300e9, batch_samples=1024, num_devices=1024, peak_flops_per_s=A100, efficiency=("hfu", 147e12 / A100),
        published=(33, "days"), source="arXiv 2205.01068, section 2.4; metaseq, OPT/chronicles/final_update.md",
        shows=Shows.PROJECTION,
        remark="without faults; with them it took 56 days on 992 devices",
    ),
    _gpt3("GPT-3 175B, 1024 devices", 1024, 140, 34, "a projection from a measured rate"),
    _gpt3("GPT-3 175B, 384 devices", 384, 153, 84, "likewise"),
    _gpt3("GPT-3 175B, 1536 devices", 1536, 141, 23, "likewise"),
    Training(
        name="Megatron 1T", num_parameters=1008e9, num_layers=128, attention_width=25600, sequence_length=2048,
        tokens=450e9, batch_samples=3072, num_devices=3072, peak_flops_per_s=A100, efficiency=("hfu", 163e12 / A100),
        published=(84, "days"), source="arXiv 2104.04473, section 5.1 and table 1",
        shows=Shows.PROJECTION, remark="a projection",
    ),
    _mt_nlg(2240, 126, 60.1),
    _mt_nlg(2800, 121, 50.2),
    _mt_nlg(3360, 113, 44.4),
    Training(
        name="PaLM 540B, a step", num_parameters=540.35e9, num_layers=118, attention_width=12288,
        sequence_length=2048, tokens=780e9, batch_samples=2048, num_devices=6144,
        model_parallel=12, peak_flops_per_s=TPU_V4,
        efficiency=("mfu", 0.462), published=(2048 * 2048 / 238_300, "s a step"),
        source="arXiv 2204.02311, section 4.1",
        shows=Shows.IDENTITY, remark="238.3K tokens/s at the last batch of a ramp",
    ),
    Training(
        name="Gopher 280B", num_parameters=280e9, num_layers=80, attention_width=16384, sequence_length=2048,
        tokens=300e9, batch_samples=3072, num_devices=4096,
        model_parallel=4, peak_flops_per_s=TPU_V3, efficiency=("mfu", 0.325),
        published=(920 / 24, "days"), source="arXiv 2112.11446, appendix; MFU in arXiv 2204.02311, table 3",
        shows=Shows.IDENTITY,
        remark="the MFU may be reckoned from the same hours; the batch was half as large at first",
    ),
    Training(
        name="BloombergGPT 50B", num_parameters=50.6e9, num_layers=70, attention_width=7680, sequence_length=2048,
        tokens=569e9, batch_samples=2048, num_devices=512, peak_flops_per_s=A100, efficiency=("hfu", 102e12 / A100),
        published=(53, "days"), source="arXiv 2303.17564, table 4 and section 3.4",
        shows=Shows.CALENDAR,
    ),
    Training(
        name="Skywork-13B", num_parameters=13.85e9, num_layers=52, attention_width=4608, sequence_length=4096,
        tokens=3.2e12, batch_samples=3906, num_devices=512, peak_flops_per_s=A100, efficiency=("mfu", 0.565),
        published=(39, "days"), source="arXiv 2310.19341, section 3.5",
        shows=Shows.CALENDAR, remark="N follows from the shape",
    ),
    Training(
        name="Nemotron-4 15B", num_parameters=14.07e9, num_layers=32, attention_width=6144, sequence_length=4096,
        tokens=7.6e12, batch_samples=1152, num_devices=2304,
        model_parallel=8, peak_flops_per_s=H100, efficiency=("mfu", 0.305),
        published=(11.9, "days"), source="arXiv 2402.16819, table 2",
        shows=Shows.IDENTITY,
        remark="its longest stage; without the input embedding, which is no product of matrices",
    ),
    Training(
        name="Llama 3.1 405B", num_parameters=405.85e9, num_layers=126, attention_width=16384, sequence_length=8192,
        tokens=15.6e12, batch_samples=2048, num_devices=16384,
        model_parallel=128, peak_flops_per_s=H100, efficiency=("mfu", 0.41),
        published=(30.84e6, "device-hours"), source="arXiv 2407.21783, table 4; model card of Llama 3.1",
        shows=Shows.INDEPENDENT,
        remark="the hours hold what did not train, a tenth at most (section 3.3.4)",
    ),
    Training(
        name="SmolLM3 3B", num_parameters=3.075e9, num_layers=36, attention_width=2048, sequence_length=4096,
        tokens=11.2e12, batch_samples=576, num_devices=384, peak_flops_per_s=H100, efficiency=("mfu", 0.294),
        published=(24, "days"), source="Hugging Face blog, smollm3",
        shows=Shows.CALENDAR,
        remark="its MFU counts other operations: by its 14k tokens/s it is 24.1 days",
    ),
    Training(
        name="StarCoder2-3B", num_parameters=3.03e9, num_layers=30, attention_width=3072, sequence_length=4096,
        tokens=3.3e12, batch_samples=640, num_devices=160, peak_flops_per_s=A100, efficiency=("tokens/s", 10_000),
        published=(97_120, "device-hours"), source="hours: arXiv 2402.19173; rate: servicenow.github.io/Fast-LLM",
        shows=Shows.INDEPENDENT,
    ),
    Training(
        name="OLMo 3 7B", num_parameters=7.3e9, num_layers=32, attention_width=4096, sequence_length=8192,
        tokens=5.93e12, batch_samples=512, num_devices=512, peak_flops_per_s=H100, efficiency=("tokens/s", 7700),
        published=(234_000, "device-hours"), source="rate and hours in the report of OLMo 3, by muxup.com 2025q4",
        shows=Shows.CALENDAR, remark="the hours hold restarts, checkpoints and the network's faults",
    ),
    Training(
        name="DeepSeek-V3", num_parameters=37e9, num_layers=61, attention_width=16384, sequence_length=4096,
        tokens=14.8e12, batch_samples=15360, num_devices=2048, peak_flops_per_s=H100,
        efficiency=("tokens/s", 272.8e9 / 86400 / 2048), published=(2_664_000, "device-hours"),
        source="hours: arXiv 2412.19437, table 1; rate: arXiv 2505.09343, table 4", shows=Shows.INDEPENDENT,
        remark="a mixture of experts, planned by its rate; by the same authors, who timed the network again",
    ),
    Training(
        name="Llama 2 70B", num_parameters=68.98e9, num_layers=80, attention_width=8192, sequence_length=4096,
        tokens=2e12, batch_samples=1024, num_devices=2000, model_parallel=8, peak_flops_per_s=A100,
        efficiency=("mfu", 0.496), published=(1_720_320, "device-hours"),
        source="hours: arXiv 2307.09288, table 2; MFU of LLaMA 65B's 380 tokens/s: arXiv 2302.13971",
        shows=Shows.INDEPENDENT, remark="at the efficiency of the training before it, as none of its own is published",
    ),
    Training(
        name="GPT-NeoX-20B", num_parameters=20.556e9, num_layers=44, attention_width=6144, sequence_length=2048,
        tokens=150_000 * 1538 * 2048, batch_samples=1536, num_devices=96, model_parallel=8, peak_flops_per_s=A100,
        efficiency=("hfu", 117e12 / A100), published=(1830 / 24, "days"), source="arXiv 2204.06745", is_outside=True,
        shows=Shows.CALENDAR, remark="its 1,830 hours need 129 TFLOP/s by these operations; 117 are published",
    ),
    Training(
        name="MPT-7B", num_parameters=6.66e9, num_layers=32, attention_width=4096, sequence_length=2048, tokens=1e12,
        batch_samples=1760, num_devices=440, peak_flops_per_s=A100, efficiency=("tokens/s", 3623),
        published=(9.5, "days"), source="days: Databricks blog, mpt-7b; rate: llm-foundry, benchmarking/README.md",
        shows=Shows.INDEPENDENT, is_outside=True,
        remark="the rate is that of 12 steps on 128 devices; the 9.5 days on 440 are 2,770 tokens/s",
    ),
    Training(
        name="OLMo 3 32B", num_parameters=32.2e9, num_layers=64, attention_width=5120, sequence_length=8192,
        tokens=5.5e12, batch_samples=1024, num_devices=1024, peak_flops_per_s=H100, efficiency=("tokens/s", 1900),
        published=(1_050_000, "device-hours"), source="rate and hours in the report of OLMo 3, by muxup.com 2025q4",
        shows=Shows.CALENDAR, is_outside=True,
        remark="a quarter of the hours is not in the rate; what took it was not found",
    ),
    Training(
        name="GLM-130B", num_parameters=130e9, num_layers=70, attention_width=12288, sequence_length=2048,
        tokens=400e9, batch_samples=4224, num_devices=768, model_parallel=32, peak_flops_per_s=A100,
        efficiency=("mfu", 0.325), published=(60, "days"), source="arXiv 2210.02414", shows=Shows.CALENDAR,
        is_outside=True, remark="with a ramp of the batch over 2.5 % of the samples, loss spikes and restarts",
    ),
    Training(
        name="OPT-175B, by the calendar", num_parameters=175e9, num_layers=96, attention_width=12288,
        sequence_length=2048, tokens=300e9, batch_samples=992, num_devices=992, peak_flops_per_s=A100,
        efficiency=("hfu", 147e12 / A100), published=(56, "days"), shows=Shows.INDEPENDENT, is_outside=True,
        source="TFLOP/s: arXiv 2205.01068; days: metaseq, OPT/chronicles/final_update.md",
        remark="more than 40 restarts by the first quarter, and changes of the optimizer",
    ),
    Training(
        name="TinyLlama 1.1B, by the calendar", num_parameters=1.1e9, num_layers=22, attention_width=2048,
        sequence_length=2048, tokens=3e12, batch_samples=1024, num_devices=16, peak_flops_per_s=A100,
        efficiency=("tokens/s", 24_000), published=(118, "days"), source="jzhang38/TinyLlama, README.md",
        shows=Shows.CALENDAR, is_outside=True, remark="from its start to its end, with repairs on the way",
    ),
)  # fmt: skip

# What BLOOM's hours hold beside the plan, by its chronicle (bigscience, train/tr11-176B-ml/chronicles.md).
_BLOOM_DEVICES, _BLOOM_BATCH_TOKENS, _BLOOM_STEP_S = 384, 2048 * 2048, 105.0
_RAMP_DAYS, _RAMP_TOKENS, _RAMP_STEPS = 7.0, 20.155e9, 12_695
_EVALUATION_S, _STEPS_BETWEEN_EVALUATIONS = 12 * 60.0, 1000
_CHECKPOINT_S, _STEPS_BETWEEN_CHECKPOINTS = 40.0, 100
_LOST_HOURS = (7.3, 18.0, 6.0, 11.0)  # of 21 March, 30 April, 9 and 18 May
_WEEKS, _MOST_LOST_A_WEEK_HOURS = 15, 3.0  # a crash "every week or so", of which at most 100 steps are lost


def bloom_parts(tokens: float) -> dict[str, float]:
    """Return the device-hours that BLOOM's chronicle names beside its steps at the last rate, by reason."""
    steps = _RAMP_STEPS + (tokens - _RAMP_TOKENS) / _BLOOM_BATCH_TOKENS
    hours = {
        "the ramp of the batch": 24 * _RAMP_DAYS - _RAMP_TOKENS / _BLOOM_BATCH_TOKENS * _BLOOM_STEP_S / 3600,
        "evaluation": steps / _STEPS_BETWEEN_EVALUATIONS * _EVALUATION_S / 3600,
        "checkpoints": steps / _STEPS_BETWEEN_CHECKPOINTS * _CHECKPOINT_S / 3600,
        "four losses that are dated": sum(_LOST_HOURS),
        "crashes of each week, at most": _WEEKS * _MOST_LOST_A_WEEK_HOURS,
    }
    return {reason: _BLOOM_DEVICES * number for reason, number in hours.items()}


def ratio(training: Training) -> float:
    """Return the plan over what was published."""
    return training.planned() / training.published[0]


def main() -> None:
    """Write and print the table."""
    text = table(TRAININGS)
    TABLE.write_text(text)
    print(text)


def table(trainings: Sequence[Training]) -> str:
    """Return the table in Markdown."""
    whole = [one for one in trainings if one.is_whole_training]
    lines = [
        "# Plans of published trainings",
        "",
        "Written by `python -m benchmarks.published_trainings`. Arithmetic alone: nothing is measured here.",
        "",
        "| what it shows | figures | median error | worst | outside 10 % |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(_statistics(kind, [one for one in trainings if one.shows is kind]) for kind in Shows),
        "",
        *(f"* {kind}: {MEANING[kind]}." for kind in Shows),
        "",
        f"{len(_inside(whole))} trainings that took place have days or device-hours within {WITHIN:.0%}; outside are "
        f"{', '.join(one.name for one in whole if one not in _inside(whole))}, each with its reason.",
        "",
        "| training | devices | tokens | goes in | published | planned | ratio | what it shows | source | remark |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | --- | --- | --- |",
        *(_row(one) for one in trainings),
        "",
        "`hfu`: TFLOP/s that count recomputed operations, over the peak; taken for an MFU they would make a plan a "
        "quarter too short. Not in the table: PaLM's whole run (8.4M chip-hours; 5.6M at its last rate: it began with "
        "a quarter of its batch, on half of its chips, and repeated steps); Pythia (its hours are published, and no "
        "efficiency), OLMo 7B (an efficiency, and no hours). `--effective-time` is for calendars.",
        "",
        "Read again in stored copies for this table: BLOOM's chronicle, llm-foundry's benchmarks, the days of MPT-7B "
        "and GLM-130B, the hours of GPT-NeoX-20B, OLMo 3 and DeepSeek-V3, the rates of StarCoder2 and SmolLM3. The "
        "other figures are cited from the publications named.",
        "",
        *_bloom_lines(trainings),
    ]
    return "\n".join(lines) + "\n"


def _inside(trainings: Sequence[Training]) -> list[Training]:
    return [one for one in trainings if abs(ratio(one) - 1) <= WITHIN]


def _statistics(kind: Shows, trainings: Sequence[Training]) -> str:
    errors = [abs(ratio(one) - 1) for one in trainings]
    return (
        f"| {kind} | {len(errors)} | {statistics.median(errors):.1%} | {max(errors):.1%} "
        f"| {len(trainings) - len(_inside(trainings))} |"
    )


def _bloom_lines(trainings: Sequence[Training]) -> list[str]:
    """Return what BLOOM's hours hold beside the plan, in Markdown."""
    (bloom,) = (one for one in trainings if one.name == "BLOOM 176B")
    published = bloom.published[0]
    parts = bloom_parts(bloom.tokens)
    gap = published - bloom.planned()
    rows = [*parts.items(), ("not named: slower weeks, waiting for nodes, restarts", gap - sum(parts.values()))]
    return [
        f"BLOOM's hours are {gap:,.0f} above the plan, {gap / published:.1%} of all. Of these its chronicle names:",
        "",
        "| reason | device-hours | share of all |",
        "| --- | ---: | ---: |",
        *(f"| {reason} | {hours:,.0f} | {hours / published:.1%} |" for reason, hours in rows),
    ]


def _row(one: Training) -> str:
    kind, value = one.efficiency
    published, unit = one.published
    efficiency = f"{value:,.0f} tokens/s" if kind == "tokens/s" else f"{kind} {value:.1%}"
    return (
        f"| {one.name} | {one.num_devices:,} | {one.tokens / 1e9:,.0f}B | {efficiency} | {_number(published)} {unit} "
        f"| {_number(one.planned())} | {ratio(one):.3f} | {one.shows} | {one.source} | {one.remark} |"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
