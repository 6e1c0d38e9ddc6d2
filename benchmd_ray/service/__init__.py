"""What users ask for: plans, their execution, jobs, searches."""
