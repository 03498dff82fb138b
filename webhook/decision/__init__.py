"""Request + policy + facts -> Decision: where every rule of ours lives, without I/O and without a clock."""
