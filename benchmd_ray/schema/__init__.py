"""What people write as text: YAML without surprises, typed values, ranges."""
