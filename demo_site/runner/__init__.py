"""What starts the demo, runs the race and judges it. A project of yours needs nothing from here."""
