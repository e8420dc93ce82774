"""The Trainer of denoising-diffusion-pytorch, as its README starts it: --sample-every=STEPS PICTURES SIZE OUTPUT."""

import sys

from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet

if __name__ == "__main__":
    interval, pictures, size, output = sys.argv[1:]
    diffusion = GaussianDiffusion(Unet(dim=16, dim_mults=(1, 2, 4)), image_size=32, timesteps=500)
    Trainer(
        diffusion,
        pictures,
        train_batch_size=int(size),
        gradient_accumulate_every=8,
        train_lr=8e-5,
        save_and_sample_every=int(interval.partition("=")[2]),
        num_samples=25,
        calculate_fid=False,
        results_folder=output,
    ).train()
