"""What a user does beside exploring: apply a result, check the machine, probe or trace one size, start again."""
