//! Commands that wait, in lists which share one piece of memory: as many places are set aside as queues have entries when
//! they connect, so that to wait allocates nothing.
use super::Ask;
use crate::poll_group::QueueName;

/// A list in an arena. Not to be copied: two of the same nodes would be one too many.
#[derive(Debug, Default)]
pub(super) struct List(Ends);

#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    first: Option<u32>,
    last: Option<u32>,
}

/// The nodes of many lists.
#[derive(Debug)]
struct Arena<T> {
    nodes: Vec<Node<T>>,
    free: Ends,
}

#[derive(Debug)]
struct Node<T> {
    value: T,
    next: Option<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Ends::default() }
    }
}

impl<T: Copy> Arena<T> {
    /// Has room for so many values in all lists together.
    fn reserve(&mut self, total: usize) {
        self.nodes.reserve(total.saturating_sub(self.nodes.len()));
    }

    fn push_back(&mut self, list: &mut Ends, value: T) {
        let node = Node { value, next: None };
        let index = match self.free.first {
            Some(index) => {
                let place = std::mem::replace(&mut self.nodes[index as usize], node);
                self.free.first = place.next;
                index
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("fewer commands wait")
            }
        };
        match list.last.replace(index) {
            Some(last) => self.nodes[last as usize].next = Some(index),
            None => list.first = Some(index),
        }
    }

    fn pop_front(&mut self, list: &mut Ends) -> Option<T> {
        let index = list.first?;
        let node = &mut self.nodes[index as usize];
        list.first = std::mem::replace(&mut node.next, self.free.first);
        self.free.first = Some(index);
        if list.first.is_none() {
            list.last = None;
        }
        Some(node.value)
    }

    fn front(&self, list: &Ends) -> Option<&T> {
        list.first.map(|index| &self.nodes[index as usize].value)
    }

    fn find_mut(&mut self, list: &Ends, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        let mut next = list.first;
        while let Some(index) = next {
            let node = &self.nodes[index as usize];
            if is_it(&node.value) {
                return Some(&mut self.nodes[index as usize].value);
            }
            next = node.next;
        }
        None
    }
}

/// The commands of one queue which wait for the same.
#[derive(Clone, Copy, Debug)]
struct Queue {
    name: QueueName,
    asks: Ends,
}

/// All that waits at one reactor. A list here is of queues, none of them empty, and of the commands of each.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    asks: Arena<Ask>,
    queues: Arena<Queue>,
}

impl Waiting {
    /// So many commands may wait at once.
    pub(super) fn reserve(&mut self, commands: usize) {
        self.asks.reserve(commands);
        self.queues.reserve(commands);
    }

    /// The last of its queue, which is the last one if it did not wait yet.
    pub(super) fn push(&mut self, List(list): &mut List, ask: Ask) {
        if let Some(queue) = self.queues.find_mut(list, |queue| queue.name == ask.name.queue) {
            return self.asks.push_back(&mut queue.asks, ask);
        }
        let mut asks = Ends::default();
        self.asks.push_back(&mut asks, ask);
        self.queues.push_back(list, Queue { name: ask.name.queue, asks });
    }

    /// The command which is next.
    pub(super) fn head(&self, List(list): &List) -> Option<&Ask> {
        self.asks.front(&self.queues.front(list)?.asks)
    }

    /// Takes the command out which is next; its queue is the last one then.
    pub(super) fn pop(&mut self, List(list): &mut List) -> Option<Ask> {
        let mut queue = self.queues.pop_front(list)?;
        let ask = self.asks.pop_front(&mut queue.asks);
        if queue.asks.first.is_some() {
            self.queues.push_back(list, queue);
        }
        ask
    }

    /// Takes out what of a queue is not to wait any more; says how many commands that were.
    pub(super) fn remove(
        &mut self,
        List(list): &mut List,
        name: QueueName,
        is_over: impl Fn(&Ask) -> bool,
    ) -> usize {
        let (mut queues, mut gone) = (std::mem::take(list), 0);
        while let Some(mut queue) = self.queues.pop_front(&mut queues) {
            if queue.name == name {
                let mut asks = std::mem::take(&mut queue.asks);
                while let Some(ask) = self.asks.pop_front(&mut asks) {
                    if is_over(&ask) {
                        gone += 1;
                    } else {
                        self.asks.push_back(&mut queue.asks, ask);
                    }
                }
            }
            if queue.asks.first.is_some() {
                self.queues.push_back(list, queue);
            }
        }
        gone
    }
}
