//! What an operator says to the target and hears from it: command line, configuration, lasting identity.
pub mod cli;
pub mod config;
pub mod devices;
pub mod draft;
pub mod identity;
pub mod media;
pub mod prepare;
pub mod reload;
pub mod render;
pub mod reservations;
pub mod source;
mod state_file;
pub mod way;
