"""Plans of published trainings against what was published: `python -m benchmarks.published_trainings`.

The model's shape, its tokens, the devices and the efficiency or throughput that were published go in; days,
device-hours or seconds of a step come out of `bexplore.planning`. Operations: 6 N + 12 L w s a token, w the width of
attention (PaLM, arXiv 2204.02311, appendix B); with full recomputation four thirds of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
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
        remark: What it is, and why it differs.
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
    remark: str = ""
    model_parallel: int = 1

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
        published=(days, "days"), source="arXiv 2104.04473, section 5.1 and table 2", remark=remark,
    )  # fmt: skip


def _mt_nlg(devices: int, tflops: float, step_s: float) -> Training:
    return Training(
        name=f"Megatron-Turing NLG 530B, {devices} devices", num_parameters=529.6e9, num_layers=105,
        attention_width=20480, sequence_length=2048, tokens=270e9, batch_samples=1920, num_devices=devices,
        peak_flops_per_s=A100, efficiency=("hfu", tflops * 1e12 / A100), published=(step_s, "s a step"),
        source="arXiv 2201.11990, section 2.4", model_parallel=280,
    )  # fmt: skip


TRAININGS = (
    Training(
        name="LLaMA 65B", num_parameters=65.2e9, num_layers=80, attention_width=8192, sequence_length=2048,
        tokens=1.4e12, batch_samples=2048, num_devices=2048, peak_flops_per_s=A100, efficiency=("tokens/s", 380),
        published=(1_022_362, "device-hours"), source="arXiv 2302.13971, section 2.4 and table 15",
        remark="about 21 days; the hours follow from the same rate, as it seems",
    ),
    Training(
        name="TinyLlama 1.1B", num_parameters=1.1e9, num_layers=22, attention_width=2048, sequence_length=2048,
        tokens=300e9, batch_samples=1024, num_devices=16, peak_flops_per_s=A100, efficiency=("tokens/s", 24_000),
        published=(3456, "device-hours"), source="jzhang38/TinyLlama, README.md", remark="of each 300B tokens",
    ),
    Training(
        name="BLOOM 176B", num_parameters=176.247e9, num_layers=70, attention_width=14336, sequence_length=2048,
        tokens=366e9, batch_samples=2048, num_devices=384, peak_flops_per_s=A100, efficiency=("hfu", 149.77e12 / A100),
        published=(1_082_990, "device-hours"), source="arXiv 2211.05100; bigscience, train/tr11-176B-ml/README.md",
        remark="the hours hold a ramp of the batch, evaluation, checkpoints and failures",
    ),
    Training(
        name="BLOOM 176B, a step", num_parameters=176.247e9, num_layers=70, attention_width=14336,
        sequence_length=2048, tokens=366e9, batch_samples=2048, num_devices=384, peak_flops_per_s=A100,
        efficiency=("hfu", 149.77e12 / A100), published=(104.7, "s a step"),
        source="bigscience, train/tr11-176B-ml/README.md",
    ),
    Training(
        name="OPT-175B", num_parameters=175e9, num_layers=96, attention_width=12288, sequence_length=2048,
        tokens=300e9, batch_samples=1024, num_devices=1024, peak_flops_per_s=A100, efficiency=("hfu", 147e12 / A100),
        published=(33, "days"), source="arXiv 2205.01068, section 2.4; metaseq, OPT/chronicles/final_update.md",
        remark="without faults; with them it took 56 days on 992 devices",
    ),
    _gpt3("GPT-3 175B, 1024 devices", 1024, 140, 34, "a projection from a measured rate"),
    _gpt3("GPT-3 175B, 384 devices", 384, 153, 84, "likewise"),
    _gpt3("GPT-3 175B, 1536 devices", 1536, 141, 23, "likewise"),
    Training(
        name="Megatron 1T", num_parameters=1008e9, num_layers=128, attention_width=25600, sequence_length=2048,
        tokens=450e9, batch_samples=3072, num_devices=3072, peak_flops_per_s=A100, efficiency=("hfu", 163e12 / A100),
        published=(84, "days"), source="arXiv 2104.04473, section 5.1 and table 1", remark="a projection",
    ),
    _mt_nlg(2240, 126, 60.1),
    _mt_nlg(2800, 121, 50.2),
    _mt_nlg(3360, 113, 44.4),
    Training(
        name="PaLM 540B, a step", num_parameters=540.35e9, num_layers=118, attention_width=12288,
        sequence_length=2048, tokens=780e9, batch_samples=2048, num_devices=6144,
        model_parallel=12, peak_flops_per_s=TPU_V4,
        efficiency=("mfu", 0.462), published=(2048 * 2048 / 238_300, "s a step"),
        source="arXiv 2204.02311, section 4.1", remark="238.3K tokens/s at the last batch of a ramp",
    ),
    Training(
        name="Gopher 280B", num_parameters=280e9, num_layers=80, attention_width=16384, sequence_length=2048,
        tokens=300e9, batch_samples=3072, num_devices=4096,
        model_parallel=4, peak_flops_per_s=TPU_V3, efficiency=("mfu", 0.325),
        published=(920 / 24, "days"), source="arXiv 2112.11446, appendix; MFU in arXiv 2204.02311, table 3",
        remark="the batch was half as large at first",
    ),
    Training(
        name="BloombergGPT 50B", num_parameters=50.6e9, num_layers=70, attention_width=7680, sequence_length=2048,
        tokens=569e9, batch_samples=2048, num_devices=512, peak_flops_per_s=A100, efficiency=("hfu", 102e12 / A100),
        published=(53, "days"), source="arXiv 2303.17564, table 4 and section 3.4",
    ),
    Training(
        name="Skywork-13B", num_parameters=13.85e9, num_layers=52, attention_width=4608, sequence_length=4096,
        tokens=3.2e12, batch_samples=3906, num_devices=512, peak_flops_per_s=A100, efficiency=("mfu", 0.565),
        published=(39, "days"), source="arXiv 2310.19341, section 3.5", remark="N follows from the shape",
    ),
    Training(
        name="Nemotron-4 15B", num_parameters=14.07e9, num_layers=32, attention_width=6144, sequence_length=4096,
        tokens=7.6e12, batch_samples=1152, num_devices=2304,
        model_parallel=8, peak_flops_per_s=H100, efficiency=("mfu", 0.305),
        published=(11.9, "days"), source="arXiv 2402.16819, table 2",
        remark="its longest stage; without the input embedding, which is no product of matrices",
    ),
    Training(
        name="Llama 3.1 405B", num_parameters=405.85e9, num_layers=126, attention_width=16384, sequence_length=8192,
        tokens=15.6e12, batch_samples=2048, num_devices=16384,
        model_parallel=128, peak_flops_per_s=H100, efficiency=("mfu", 0.41),
        published=(30.84e6, "device-hours"), source="arXiv 2407.21783, table 4; model card of Llama 3.1",
        remark="the hours hold what did not train, a tenth at most (section 3.3.4)",
    ),
    Training(
        name="SmolLM3 3B", num_parameters=3.075e9, num_layers=36, attention_width=2048, sequence_length=4096,
        tokens=11.2e12, batch_samples=576, num_devices=384, peak_flops_per_s=H100, efficiency=("mfu", 0.294),
        published=(24, "days"), source="Hugging Face blog, smollm3",
        remark="its MFU counts other operations: by its 14k tokens/s it is 24.1 days",
    ),
)  # fmt: skip


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
    errors = [abs(ratio(one) - 1) for one in trainings]
    rows = [_row(one) for one in trainings]
    lines = [
        "# Plans of published trainings",
        "",
        "Written by `python -m benchmarks.published_trainings`. Arithmetic alone: nothing is measured here.",
        "",
        f"{len(trainings)} figures, median error {statistics.median(errors):.1%}, worst {max(errors):.1%} (must: at "
        f"most {WITHIN:.0%}).",
        "",
        "| training | devices | tokens | goes in | published | planned | ratio | source | remark |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | --- | --- |",
        *rows,
        "",
        "`hfu`: TFLOP/s that count recomputed operations, over the peak; taken for an MFU they would make a plan a "
        "quarter too short. Not in the table, as more than the arithmetic is in them: PaLM's whole run (8.4M "
        "chip-hours; 5.6M at its last rate: it began with a quarter of its batch, on half of its chips, and repeated "
        "steps), OPT's calendar (56 days for 34), TinyLlama's calendar (118 days for 90). `--effective-time` is for "
        "these.",
    ]
    return "\n".join(lines) + "\n"


def _row(one: Training) -> str:
    kind, value = one.efficiency
    published, unit = one.published
    efficiency = f"{value:,.0f} tokens/s" if kind == "tokens/s" else f"{kind} {value:.1%}"
    return (
        f"| {one.name} | {one.num_devices:,} | {one.tokens / 1e9:,.0f}B | {efficiency} | {_number(published)} {unit} "
        f"| {_number(one.planned())} | {ratio(one):.3f} | {one.source} | {one.remark} |"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
