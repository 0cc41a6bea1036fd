//! Media against real files.
