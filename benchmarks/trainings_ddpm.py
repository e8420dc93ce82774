"""The Trainer of denoising-diffusion-pytorch as its README starts it: PICTURES MICRO_BATCH_SIZE OUTPUT."""

import sys

from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet

if __name__ == "__main__":
    pictures, size, output = sys.argv[1:]
    diffusion = GaussianDiffusion(Unet(dim=16, dim_mults=(1, 2, 4)), image_size=32, timesteps=500)
    Trainer(
        diffusion,
        pictures,
        train_batch_size=int(size),
        gradient_accumulate_every=8,
        train_lr=8e-5,
        save_and_sample_every=5,
        num_samples=25,
        calculate_fid=False,
        results_folder=output,
    ).train()
