//! What an initiator posts to an adapter.
use rdma_sys::ibv_sge;

use super::connection::{Link, Phase, as_it_lies};
use super::provider::Ibv;
use crate::memory::Memory;
use crate::verbs::{
    Access, Event, Exposure, HostVerbs, MrHandle, QpHandle, Remote, Sge, Token, Wc, WcStatus,
};

impl HostVerbs for Ibv {
    fn allocate_mr(&mut self, qp: QpHandle) -> MrHandle {
        let Self { connections, adapters, .. } = self;
        let connection = &mut connections[usize::from(qp.0)];
        let Phase::Full(full) = &connection.phase else { panic!("the queue pair is not connected yet") };
        let Some(link) = &full.link else { return MrHandle(0) };
        match connection.lending.allocate(&adapters[link.adapter]) {
            Ok(mr) => mr,
            Err(error) => {
                // Nothing that is posted from now on reaches the adapter's peer.
                connection.lending = super::lending::Lending::Nothing;
                self.end(qp, &error.to_string());
                MrHandle(0)
            }
        }
    }

    fn prepare(&mut self, qp: QpHandle, mr: MrHandle, sge: Sge, access: Access) -> Exposure {
        let Self { connections, adapters, memory, .. } = self;
        let connection = &mut connections[usize::from(qp.0)];
        let registration = memory.lends(sge.lkey, connection.lending.registration());
        let nowhere = Exposure { mr, sge, access, remote: Remote { address: 0, rkey: 0 }, registration };
        let Phase::Full(full) = &connection.phase else { panic!("the queue pair is not connected yet") };
        let Some(link) = full.link.as_ref().filter(|_| !full.ended) else { return nowhere };
        match connection.lending.prepare(&mut adapters[link.adapter], mr, sge, access) {
            Ok(remote) => Exposure { remote, ..nowhere },
            Err(error) => {
                self.end(qp, &error.to_string());
                nowhere
            }
        }
    }

    fn post_command(
        &mut self,
        qp: QpHandle,
        token: Token,
        command: &[u8; 64],
        data: Option<Sge>,
        expose: Option<Exposure>,
    ) {
        self.post(qp, token, |link, lending, adapter, memory| {
            let binding = expose.map(|exposure| lending.binding(adapter, &exposure)).transpose()?.flatten();
            let data = data.map(|data| adapter.piece(data)).transpose()?;
            let (piece, inline) = capsule(link, memory, command, data.is_some());
            let posted = link.queue.post_command(token, binding, piece, data, inline);
            if let Some(exposure) = &expose {
                lending.bound(exposure);
            }
            Ok(posted)
        });
    }

    fn post_invalidate(&mut self, qp: QpHandle, token: Token, key: u32) {
        if self.connections[usize::from(qp.0)].lending.end(key) {
            self.events.push_back(Event::Completed(Wc { qp, token, status: WcStatus::Success }));
            return;
        }
        self.post(qp, token, |link, _, _, _| Ok(link.queue.post_invalidate(token, key)));
    }
}

/// A command as it is posted, and whether it is copied meanwhile: data behind it would have to be copied too.
fn capsule(link: &mut Link, memory: &Memory, command: &[u8; 64], with_data: bool) -> (ibv_sge, bool) {
    if link.queue.copies() && !with_data {
        return (as_it_lies(command), true);
    }
    let outgoing = link.outgoing.as_mut().expect("a host's connection has buffers for its commands");
    (outgoing.hold(memory, command), false)
}
