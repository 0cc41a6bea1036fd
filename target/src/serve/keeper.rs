//! The thread which makes reservations durable, so that no reactor waits for a disk.
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use ironside_common::reactor::Sender;

use super::chain;
use crate::control::reservations;
use crate::poll_group::Message;
use crate::reactor::Letter;
use crate::reservation::Keep;

/// Starts it. It ends with the reactor that has the sender.
pub(super) fn start(
    state_directory: Option<PathBuf>,
    registrar: Sender<Letter>,
) -> io::Result<mpsc::Sender<Keep>> {
    let (sender, to_keep) = mpsc::channel();
    let thread = thread::Builder::new().name("keeper".to_owned());
    thread.spawn(move || keep_all(state_directory, &registrar, &to_keep))?;
    Ok(sender)
}

fn keep_all(state_directory: Option<PathBuf>, registrar: &Sender<Letter>, to_keep: &Receiver<Keep>) {
    for Keep { uuid, number, state } in to_keep {
        let kept = match &state_directory {
            None => {
                tracing::error!("no place for lasting reservations: give --state-dir (state-dir in a file)");
                false
            }
            Some(directory) => match reservations::save(directory, uuid, state.as_deref()) {
                Ok(()) => true,
                Err(error) => {
                    tracing::error!("a change of reservations is refused: {}", chain(&error));
                    false
                }
            },
        };
        // A registrar that is gone has no host to answer.
        let _ = registrar.send(Letter::Group(Message::Kept { uuid, number, kept }));
    }
}
