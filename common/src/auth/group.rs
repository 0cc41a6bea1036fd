//! The finite fields of Diffie-Hellman in DH-HMAC-CHAP: those of RFC 7919, whose primes are the digits of e between ones.
use std::fmt;
use std::str::FromStr;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use zeroize::{Zeroize, Zeroizing};

use super::Randomness;
use super::hash::Hidden;

/// Bits of a private exponent: twice the strength of the strongest group, and more (RFC 7919, section 5.2).
const EXPONENT_BITS: u32 = 512;
const ONES: [u8; 8] = [0xFF; 8];

/// The digits of e, as many as the largest prime has between its ones.
const E: &str = "\
     adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8f681\
     b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77e2a689da\
     f3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de39\
     4df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183\
     c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34\
     f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452\
     e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53\
     ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42d69f6d187763cf1d55034004\
     87f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c46dc778f971ad0038092999a333cb8b7a1a1d\
     b93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e0dd9020bfd64b6\
     45036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccf\
     ec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910b855322edb6340d8a00ef092350511e30abec1fff9e3a26e\
     7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8\
     db5847a67cbef9c9091b462d538cd72b03746ae77f5e62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5\
     cacef403ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff4\
     6aaa36ad004cf600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829\
     555b2f747c932665cb2c0f1cc01bd70229388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541f\
     c68c9c86b022bb7099876a460e7451a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cd\
     ad9a95f9d5b8019488d9c0a0a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe5\
     8a30fafabe1c5d71a87e2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88c\
     d68c8bb7c51eef6d";

/// A group, by its identifier in messages.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Group {
    /// No Diffie-Hellman at all.
    Null,
    Ffdhe2048,
    Ffdhe3072,
    Ffdhe4096,
    Ffdhe6144,
    Ffdhe8192,
}

/// One side's part of an exchange.
pub(super) struct KeyPair {
    group: Group,
    exponent: Zeroizing<BoxedUint>,
    /// For the other side, as long as the prime.
    pub public: Vec<u8>,
}

/// The other side's value is none of the group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct BadValue;

impl Group {
    pub const ALL: [Self; 6] =
        [Self::Null, Self::Ffdhe2048, Self::Ffdhe3072, Self::Ffdhe4096, Self::Ffdhe6144, Self::Ffdhe8192];

    /// Its number, 0 to 5.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// Of a public value, in bytes.
    #[must_use]
    pub const fn length(self) -> usize {
        self.bits() as usize / 8
    }

    const fn bits(self) -> u32 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 2048,
            Self::Ffdhe3072 => 3072,
            Self::Ffdhe4096 => 4096,
            Self::Ffdhe6144 => 6144,
            Self::Ffdhe8192 => 8192,
        }
    }

    /// A new exponent and its power; nothing in the null group.
    pub(super) fn key_pair(self, random: &mut dyn Randomness) -> Option<KeyPair> {
        if self == Self::Null {
            return None;
        }
        let mut bytes = Zeroizing::new([0; EXPONENT_BITS as usize / 8]);
        random.fill(bytes.as_mut());
        // The top bit set makes every exponent as long as another, and none of them zero.
        bytes[0] |= 0x80;
        let exponent = BoxedUint::from_be_slice(bytes.as_ref(), EXPONENT_BITS).expect("as long as said");
        let exponent = Zeroizing::new(exponent);
        let two = BoxedUint::from(2_u8).resize(self.bits());
        let public = self.power(two, &exponent).to_vec();
        Some(KeyPair { group: self, exponent, public })
    }

    /// In constant time but for the group.
    fn power(self, base: BoxedUint, exponent: &BoxedUint) -> Hidden {
        let modulus = BoxedUint::from_be_slice(&self.prime(), self.bits()).expect("as long as said");
        let params = BoxedMontyParams::new_vartime(Odd::new(modulus).expect("a prime is odd"));
        let mut form = BoxedMontyForm::new(base, &params).pow_bounded_exp(exponent, EXPONENT_BITS);
        let mut power = form.retrieve();
        form.zeroize();
        let bytes = Zeroizing::new(power.to_be_bytes().into_vec());
        power.zeroize();
        bytes
    }

    /// Big-endian: ones, digits of e and a small number, ones (RFC 7919, appendix A).
    fn prime(self) -> Vec<u8> {
        // X of the appendix, less the one which the formula subtracts from the ones behind it.
        let mut carry: u64 = match self {
            Self::Null => unreachable!("the null group has no prime"),
            Self::Ffdhe2048 => 560_316 - 1,
            Self::Ffdhe3072 => 2_625_351 - 1,
            Self::Ffdhe4096 => 5_736_041 - 1,
            Self::Ffdhe6144 => 15_705_020 - 1,
            Self::Ffdhe8192 => 10_965_728 - 1,
        };
        let middle = self.length() - 2 * ONES.len();
        let digit = |at: usize| u8::from_str_radix(&E[2 * at..2 * at + 2], 16).expect("E is hexadecimal");
        let mut digits: Vec<u8> = (0..middle).map(digit).collect();
        for byte in digits.iter_mut().rev() {
            carry += u64::from(*byte);
            *byte = carry.to_le_bytes()[0];
            carry >>= 8;
        }
        [&ONES[..], &digits, &ONES].concat()
    }
}

impl KeyPair {
    /// What both sides have in common: the other's value to the power of our exponent.
    ///
    /// # Errors
    /// If the value is none that an honest peer sends: of another length, or 0, 1, p - 1 or above, which alone lie in
    /// small subgroups, since p is a safe prime (RFC 7919, section 5.1).
    pub(super) fn shared(&self, theirs: &[u8]) -> Result<Hidden, BadValue> {
        let prime = self.group.prime();
        if theirs.len() != prime.len() {
            return Err(BadValue);
        }
        let (first, last) = theirs.split_at(theirs.len() - 1);
        let is_small = first.iter().all(|&byte| byte == 0) && last[0] < 2;
        // Big-endian numbers of one length compare as their bytes do; the prime ends in FFh.
        let mut largest = prime;
        *largest.last_mut().expect("a prime has bytes") -= 1;
        if is_small || theirs >= largest.as_slice() {
            return Err(BadValue);
        }
        let base = BoxedUint::from_be_slice(theirs, self.group.bits()).expect("as long as said");
        Ok(self.group.power(base, &self.exponent))
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("group", &self.group).finish_non_exhaustive()
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            group => write!(f, "ffdhe{}", group.bits()),
        }
    }
}

/// The name is that of no group of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a group is one of null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 and ffdhe8192")]
pub struct GroupError;

impl FromStr for Group {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<Self, GroupError> {
        Self::ALL.into_iter().find(|group| group.to_string() == text).ok_or(GroupError)
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::auth::SystemRandomness;

    /// SHA-256 of each prime, big-endian, computed apart from this code by RFC 7919's formula from e as the sum of
    /// 1/k!, after p and (p - 1) / 2 had both passed Miller-Rabin.
    const PRIMES: [(Group, [u8; 4]); 5] = [
        (Group::Ffdhe2048, [0x9c, 0xd3, 0xb7, 0xf3]),
        (Group::Ffdhe3072, [0x0e, 0xaf, 0x67, 0xdb]),
        (Group::Ffdhe4096, [0x46, 0x48, 0x41, 0x42]),
        (Group::Ffdhe6144, [0x22, 0x7a, 0xc9, 0x06]),
        (Group::Ffdhe8192, [0x77, 0x0b, 0x14, 0xef]),
    ];

    #[test]
    fn primes_are_those_of_rfc_7919() {
        for (group, begin) in PRIMES {
            let prime = group.prime();
            assert_eq!(prime.len(), group.length());
            assert_eq!(Sha256::digest(&prime)[..4], begin, "{group}");
        }
    }

    #[test]
    fn both_sides_find_the_same() {
        for (group, _) in PRIMES {
            let pair = || group.key_pair(&mut SystemRandomness).unwrap();
            let (one, other) = (pair(), pair());
            assert_ne!(one.public, other.public);
            assert_eq!(one.shared(&other.public).unwrap(), other.shared(&one.public).unwrap(), "{group}");
        }
        assert!(Group::Null.key_pair(&mut SystemRandomness).is_none());
    }

    #[test]
    fn values_of_small_subgroups_or_beyond_are_refused() {
        let group = Group::Ffdhe2048;
        let pair = group.key_pair(&mut SystemRandomness).unwrap();
        let number = |small: u8| {
            let mut bytes = vec![0; group.length()];
            *bytes.last_mut().unwrap() = small;
            bytes
        };
        let mut below = group.prime();
        *below.last_mut().unwrap() -= 1;
        let mut good = group.prime();
        *good.last_mut().unwrap() -= 2;
        for bad in [number(0), number(1), below, group.prime(), vec![0xFF; group.length()], vec![2], vec![]] {
            assert_eq!(pair.shared(&bad), Err(BadValue));
        }
        assert!(pair.shared(&number(2)).is_ok() && pair.shared(&good).is_ok());
    }
}
