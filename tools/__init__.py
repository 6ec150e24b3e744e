"""Programs for building this repository; nothing here is part of the wheel."""
