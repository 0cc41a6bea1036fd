//! What paths say of the subsystem and its namespaces, put together: whether a path belongs to the others, where it leads,
//! and what holds by whichever path a request takes.
use ironside_common::nvme::identify;
use ironside_common::nvme::log_page::AnaState;

use super::policy::Candidate;
use super::{Path, Paths};
use crate::host::{HostEvent, Namespace};
use crate::volume::{Geometry, State};

impl Paths {
    /// A path has to lead to the same subsystem as the others, by a controller of its own.
    pub(super) fn check_subsystem(&mut self, index: usize) {
        let identity = |path: &Path| {
            let controller: &identify::Controller =
                zerocopy::transmute_ref!(&*path.host.controller()?.identify);
            Some((controller.serial, controller.model))
        };
        let others = || {
            let others =
                self.paths.iter().enumerate().filter(|(other, path)| *other != index && path.is_fit());
            others.map(|(_, path)| path)
        };
        let this = &self.paths[index];
        let unfit = if others().any(|other| identity(other) != identity(this)) {
            Some("another subsystem has the same name there: its serial or model number is another one")
        } else if others().any(|other| other.host.cntlid() == this.host.cntlid()) {
            Some(
                "its controller has the identifier of another path's: give the targets separate cntlid ranges",
            )
        } else {
            None
        };
        if let Some(why) = unfit.filter(|_| this.unfit != unfit) {
            tracing::error!(address = %this.host.options().address, why, "a path is not used");
        }
        self.paths[index].unfit = unfit;
    }

    /// Compares what a path says of namespaces with what is known.
    pub(super) fn learn(&mut self, index: usize) {
        if self.paths[index].unfit.is_some() {
            self.paths[index].namespaces.fill(None);
            return;
        }
        let mut mine = vec![None; self.namespaces.len()];
        for (of_host, found) in self.paths[index].host.namespaces().iter().enumerate() {
            let known = self.namespaces.iter().position(|known| known.nsid == found.nsid);
            match known {
                None => {
                    self.events.push_back((index, HostEvent::NamespaceAdded(self.namespaces.len())));
                    self.namespaces.push(found.clone());
                    mine.push(Some(of_host));
                }
                Some(known) => {
                    // One that is not shared has one path only, and another one under the number is none.
                    let others = self.paths.iter().enumerate().filter(|(other, _)| *other != index);
                    let is_first = others.into_iter().all(|(_, other)| !other.leads_to(known));
                    let fits = self.namespaces[known].is_same(found) && (found.shared || is_first);
                    mine[known] = fits.then_some(of_host);
                }
            }
        }
        self.paths[index].namespaces = mine;
        for path in &mut self.paths {
            path.namespaces.resize(self.namespaces.len(), None);
            path.refused_until.resize(self.namespaces.len(), None);
        }
        for namespace in 0..self.namespaces.len() {
            self.merge(index, namespace);
        }
    }

    /// What a namespace is like by all of its paths together.
    fn merge(&mut self, index: usize, namespace: usize) {
        let views = || {
            let known = self.paths.iter().filter_map(|path| path.view(namespace));
            known.filter(|view| view.available)
        };
        let geometry = views().map(|view| view.geometry).reduce(least);
        let known = &self.namespaces[namespace];
        let next = Namespace {
            available: geometry.is_some(),
            geometry: geometry.unwrap_or(known.geometry),
            ..self.paths[index].view(namespace).unwrap_or(known).clone()
        };
        if (next.available, next.geometry) != (known.available, known.geometry) {
            self.events.push_back((index, HostEvent::NamespaceChanged(namespace)));
        }
        self.namespaces[namespace] = next;
    }
}

impl Path {
    fn is_fit(&self) -> bool {
        self.host.state() == State::Connected && self.unfit.is_none()
    }

    fn view(&self, namespace: usize) -> Option<&Namespace> {
        let index = self.namespaces.get(namespace).copied().flatten()?;
        self.host.namespaces().get(index)
    }

    pub(super) fn leads_to(&self, namespace: usize) -> bool {
        self.is_fit() && self.view(namespace).is_some_and(|view| view.available)
    }

    /// What speaks for this path, if it can be taken now.
    pub(super) fn candidate(&self, path: usize, namespace: usize) -> Option<Candidate> {
        let usable = self.leads_to(namespace) && self.host.has_room();
        let index = self.namespaces.get(namespace).copied().flatten().filter(|_| usable)?;
        let state = self.host.ana_state(index);
        let passed_over = state.refusal().is_some() || self.refused_until[namespace].is_some();
        let optimized = state == AnaState::OPTIMIZED;
        (!passed_over).then_some(Candidate { path, optimized, in_flight: self.in_flight })
    }
}

/// What holds by either of two paths.
fn least(one: Geometry, other: Geometry) -> Geometry {
    Geometry {
        size: one.size.min(other.size),
        max_transfer: one.max_transfer.min(other.max_transfer),
        preferred_write: one.preferred_write.max(other.preferred_write),
        read_only: one.read_only || other.read_only,
        write_zeroes: one.write_zeroes && other.write_zeroes,
        discard: one.discard && other.discard,
        volatile_cache: one.volatile_cache || other.volatile_cache,
        ..one
    }
}
