//! Where a subsystem is reached, and how its namespaces can be used there.

use ironside_common::nvme::log_page::AnaState;
use ironside_common::verbs;
use serde::Deserialize;
use serde_json::{Value, json};

use super::addresses::{self, Address};
use super::parameters::{self, nqn, refuse, target};
use super::{RpcError, Subject, subsystems};
use crate::control::config::{Config, Listen, Subsystem};
use crate::control::draft::Draft;

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Optimized,
    NonOptimized,
    Inaccessible,
    PersistentLoss,
    Change,
}

impl State {
    const fn wire(self) -> AnaState {
        match self {
            Self::Optimized => AnaState::OPTIMIZED,
            Self::NonOptimized => AnaState::NON_OPTIMIZED,
            Self::Inaccessible => AnaState::INACCESSIBLE,
            Self::PersistentLoss => AnaState::PERSISTENT_LOSS,
            Self::Change => AnaState::CHANGE,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listener {
    nqn: String,
    listen_address: Address,
    tgt_name: Option<String>,
    #[serde(default)]
    secure_channel: bool,
    ana_state: Option<State>,
    anagrpid: Option<u32>,
    sock_impl: Option<String>,
    numa_id: Option<i32>,
}

impl Listener {
    fn read(given: Value) -> Result<Self, RpcError> {
        let given: Self = parameters::read(given)?;
        target(given.tgt_name.as_deref())?;
        refuse(&[
            ("secure_channel", given.secure_channel),
            ("sock_impl", given.sock_impl.is_some()),
            ("numa_id", given.numa_id.is_some_and(|node| node != -1)),
        ])?;
        Ok(given)
    }
}

/// The listeners of a subsystem, those of the target written out where it has none of its own.
fn listed(config: &Config, said: &Subsystem) -> Vec<Listen> {
    said.listen.as_ref().unwrap_or(&config.listen).clone()
}

fn texts(listen: &[Listen]) -> Vec<String> {
    listen.iter().map(ToString::to_string).collect()
}

pub(super) fn add(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given = Listener::read(given)?;
    refuse(&[("anagrpid", given.anagrpid.is_some())])?;
    let (subsystem, at) = (nqn(&given.nqn)?, given.listen_address.parse()?);
    let mut listen = listed(draft.config(), draft.subsystem(&subsystem)?);
    if listen.iter().any(|one| one.address == at) {
        return Err(RpcError::invalid(format!("{subsystem} listens at {at} already")));
    }
    // Whoever serves that address for another subsystem serves it for this one.
    let known = draft.config().subsystems.iter().flat_map(|one| listed(draft.config(), one));
    listen.push(known.into_iter().find(|one| one.address == at).unwrap_or(Listen::at(at)));
    draft.listen(&subsystem, &texts(&listen))?;
    match given.ana_state {
        None | Some(State::Optimized) => {}
        Some(state) => set_everywhere(draft, &given.nqn, at, state)?,
    }
    Ok(Value::Bool(true))
}

pub(super) fn remove(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given = Listener::read(given)?;
    refuse(&[("anagrpid", given.anagrpid.is_some()), ("ana_state", given.ana_state.is_some())])?;
    let (subsystem, at) = (nqn(&given.nqn)?, given.listen_address.parse()?);
    let said = draft.subsystem(&subsystem)?;
    let mut listen = listed(draft.config(), said);
    let before = listen.len();
    listen.retain(|one| one.address != at);
    if listen.len() == before {
        return Err(RpcError::invalid(format!("{subsystem} does not listen at {at}")));
    }
    // States at a listener go with it.
    let said: Vec<_> = said.access.iter().filter(|one| one.listen == Some(at)).map(|one| one.group).collect();
    for group in said {
        draft.set_access(&subsystem, (at, group), None)?;
    }
    draft.listen(&subsystem, &texts(&listen))?;
    Ok(Value::Bool(true))
}

pub(super) fn set_ana_state(draft: &mut Draft, given: Value) -> Result<Value, RpcError> {
    let given = Listener::read(given)?;
    let at = given.listen_address.parse()?;
    let state =
        given.ana_state.ok_or_else(|| RpcError::invalid("Invalid parameters: missing field `ana_state`"))?;
    let subsystem = nqn(&given.nqn)?;
    if listed(draft.config(), draft.subsystem(&subsystem)?).iter().all(|one| one.address != at) {
        return Err(RpcError::invalid(format!("{subsystem} does not listen at {at}")));
    }
    match given.anagrpid {
        Some(group) => draft.set_access(&subsystem, (at, group), Some(state.wire()))?,
        None => set_everywhere(draft, &given.nqn, at, state)?,
    }
    Ok(Value::Bool(true))
}

/// Sets the state of each group there is, and of the first, which namespaces are of unless told otherwise.
fn set_everywhere(draft: &mut Draft, name: &str, at: verbs::Address, state: State) -> Result<(), RpcError> {
    let subsystem = nqn(name)?;
    let mut groups: Vec<u32> =
        draft.subsystem(&subsystem)?.namespaces.iter().map(|one| one.ana_group).collect();
    groups.push(1);
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        draft.set_access(&subsystem, (at, group), Some(state.wire()))?;
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    nqn: String,
    tgt_name: Option<String>,
}

pub(super) fn get(subject: &mut dyn Subject, given: Value) -> Result<Value, RpcError> {
    let given: Named = parameters::read(given)?;
    target(given.tgt_name.as_deref())?;
    let subsystem = subsystems::find(subject.served(), &given.nqn)?;
    let one = |&at: &verbs::Address| {
        let states = subsystem.ana_groups().into_iter().map(|group| {
            let word = subsystem.ana_state(group, at).to_string().replace(['-', ' '], "_");
            json!({ "ana_group": group, "ana_state": word })
        });
        json!({ "address": addresses::describe(at), "ana_states": states.collect::<Value>() })
    };
    Ok(subsystem.listen().iter().map(one).collect())
}
