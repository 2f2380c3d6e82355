"""What every package of the coordinator may use: clock, tasks, slices of work, alarms."""
