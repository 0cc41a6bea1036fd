//! What we promise to whoever is at the other end of the wire, as a table: each row one requirement, its section in
//! the specification, and a check which drives our endpoint by bytes. docs/conformance.md says how to read and
//! extend it.
mod admin;
mod ana;
mod auth;
mod capsule;
mod connection;
mod copy;
mod discovery;
mod fabrics;
mod fused;
mod host;
mod host_auth;
mod host_io;
mod identify;
mod initiator;
mod io;
mod masking;
mod mpa;
mod pipe;
mod property;
mod protection;
mod prover;
mod queue;
mod rdmap;
mod reservation;
mod sgl;
mod target;
mod wire;

use std::collections::BTreeSet;

use libtest_mimic::{Arguments, Trial};

/// One row.
pub(crate) struct Requirement {
    /// Its name, for ever: area and number.
    pub(crate) id: &'static str,
    /// Document and section, as [`Requirement::section`]s are written in docs/conformance.md.
    pub(crate) section: &'static str,
    /// What our endpoint does.
    pub(crate) says: &'static str,
    /// Panics if it does not.
    pub(crate) check: fn(),
}

pub(crate) const fn row(
    id: &'static str,
    section: &'static str,
    says: &'static str,
    check: fn(),
) -> Requirement {
    Requirement { id, section, says, check }
}

const AREAS: &[&[Requirement]] = &[
    connection::ROWS,
    capsule::ROWS,
    sgl::ROWS,
    fabrics::ROWS,
    property::ROWS,
    identify::ROWS,
    discovery::ROWS,
    admin::ROWS,
    io::ROWS,
    copy::ROWS,
    reservation::ROWS,
    ana::ROWS,
    masking::ROWS,
    protection::ROWS,
    auth::ROWS,
    mpa::ROWS,
    rdmap::ROWS,
    host::ROWS,
    host_io::ROWS,
    host_auth::ROWS,
];

fn main() {
    let rows: Vec<&Requirement> = AREAS.iter().copied().flatten().collect();
    let ids: BTreeSet<_> = rows.iter().map(|row| row.id).collect();
    assert_eq!(ids.len(), rows.len(), "two rows have the same id");
    let trials = rows.into_iter().map(|row| {
        let name = format!("{} {} ({})", row.id, row.says, row.section);
        Trial::test(name, move || {
            (row.check)();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
