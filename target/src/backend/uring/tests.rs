//! The file machine, answered by hand.
