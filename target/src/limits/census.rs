//! Who is there, counted over all reactors, so that a limit of the whole target is never exceeded however many come at
//! once. Reactors look here when somebody connects, and never while commands run.
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ironside_common::nvme::fabrics::CNTLID_MAX;

/// The connections and controllers of a target.
#[derive(Clone, Debug)]
pub struct Census {
    pub connections: Arc<Register>,
    pub controllers: Arc<Register>,
}

impl Census {
    /// The most there can be of each.
    pub const CONNECTIONS: usize = 1 << 16;
    pub const CONTROLLERS: usize = CNTLID_MAX as usize;
}

/// Nobody is there yet.
impl Default for Census {
    fn default() -> Self {
        let register = |places| Arc::new(Register::new(places));
        Self { connections: register(Self::CONNECTIONS), controllers: register(Self::CONTROLLERS) }
    }
}

/// By whom each place is taken: zero is nobody. No lock: a place is taken by one exchange.
#[derive(Debug)]
pub struct Register {
    places: Box<[AtomicU64]>,
    /// Places behind this one were never taken.
    end: AtomicUsize,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Full {
    /// For anybody.
    Whole,
    /// For this one.
    Share,
}

/// One place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    register: Arc<Register>,
    index: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.register.places[self.index].store(0, Ordering::SeqCst);
    }
}

impl Register {
    fn new(places: usize) -> Self {
        Self { places: (0..places).map(|_| AtomicU64::new(0)).collect(), end: AtomicUsize::new(0) }
    }

    /// Takes a place for `who`, if there are so many at most then in all, and of its own.
    ///
    /// # Errors
    /// If there would be more. Of several who come for the last one at the same moment, on different reactors, none may
    /// get it; never do two.
    pub fn take(self: &Arc<Self>, who: NonZeroU64, most: u64, most_each: u64) -> Result<Place, Full> {
        let is_mine = |place: &AtomicU64| {
            place.compare_exchange(0, who.get(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let index = self.places.iter().position(is_mine).ok_or(Full::Whole)?;
        self.end.fetch_max(index + 1, Ordering::SeqCst);
        let place = Place { register: Arc::clone(self), index };
        // Counted after it was taken: whoever else takes one now is seen here, or sees this.
        let (all, own) = self.count(who);
        if own > most_each {
            Err(Full::Share)
        } else if all > most {
            Err(Full::Whole)
        } else {
            Ok(place)
        }
    }

    /// Places that are taken, and those by one.
    fn count(&self, who: NonZeroU64) -> (u64, u64) {
        let taken = self.places[..self.end.load(Ordering::SeqCst)].iter();
        let taken = taken.map(|place| place.load(Ordering::SeqCst)).filter(|&one| one != 0);
        taken.fold((0, 0), |(all, own), one| (all + 1, own + u64::from(one == who.get())))
    }
}

/// An address by which connections are counted. Whoever has an IPv6 address has all that share its first half.
#[must_use]
pub fn network(address: IpAddr) -> NonZeroU64 {
    let bits = match address.to_canonical() {
        // No IPv6 network begins so.
        IpAddr::V4(address) => 0xFFFF << 32 | u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    };
    // The loopback's.
    NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_more_than_the_share_and_all_no_more_than_there_is() {
        let register = Arc::new(Register::new(8));
        let (one, other) = (NonZeroU64::MIN, NonZeroU64::MAX);
        let mut places: Vec<Place> = (0..2).map(|_| register.take(one, 3, 2).unwrap()).collect();
        assert_eq!(register.take(one, 3, 2).err(), Some(Full::Share));
        places.push(register.take(other, 3, 2).unwrap());
        assert_eq!(register.take(other, 3, 2).err(), Some(Full::Whole));
        drop(places.remove(0));
        places.push(register.take(other, 3, 2).unwrap());
        assert_eq!(register.count(other), (3, 2), "what was refused is not there");
        places.extend((0..5).map(|_| register.take(one, 100, 100).unwrap()));
        assert_eq!(register.take(one, 100, 100).err(), Some(Full::Whole), "no place at all");
        drop(places);
        assert_eq!(register.count(one), (0, 0));
    }

    #[test]
    fn a_limit_holds_however_many_come_at_once() {
        let register = Arc::new(Register::new(64));
        let come = |number: u64| {
            let register = Arc::clone(&register);
            move || -> Vec<Place> {
                let who = NonZeroU64::new(number).unwrap();
                (0..16).filter_map(|_| register.take(who, 10, 16).ok()).collect()
            }
        };
        let threads: Vec<_> = (1..=4).map(|number| std::thread::spawn(come(number))).collect();
        let places: Vec<Place> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert!(!places.is_empty() && places.len() <= 10, "{}", places.len());
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let network = |text: &str| network(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::2:3"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_ne!(network("::1"), network("0.0.0.0"));
    }
}
