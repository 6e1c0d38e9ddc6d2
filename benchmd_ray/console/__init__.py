"""What a terminal shows, how signals end work, and polling."""
