//! What the bytes of a page tell without opening the database.

use hkdf::hmac::{Hmac, Mac};
use sha2::Sha512;
use xmtp_core::storage::DatabaseKey;
use zeroize::Zeroizing;

use crate::connection::PAGE_BYTES;
use crate::key::{self, SALT_BYTES};

/// Bytes of the authentication code at the end of an encrypted page.
const CODE_BYTES: usize = 64;
/// What SQLCipher changes the salt by to derive the authentication key.
const SALT_MASK: u8 = 0x3a;
/// Above this no random page of 4 KiB comes in practice (expected 255, deviation 23).
const LARGEST_CHI_SQUARE: u64 = 500;

/// Checks the authentication code that SQLCipher 4 puts on each page.
pub(crate) struct PageCheck(Zeroizing<[u8; 32]>);

impl PageCheck {
    /// Derives the authentication key: PBKDF2-HMAC-SHA512 with two rounds.
    pub(crate) fn new(key: &DatabaseKey) -> Self {
        let salt = key::salt(key).map(|byte| byte ^ SALT_MASK);
        let first = Zeroizing::new(code(key.bytes(), &[&salt, &1u32.to_be_bytes()]));
        let second = Zeroizing::new(code(key.bytes(), &[&first[..]]));
        let mut derived = Zeroizing::new([0; 32]);
        for (index, byte) in derived.iter_mut().enumerate() {
            *byte = first[index] ^ second[index];
        }
        Self(derived)
    }

    /// Tells whether a page was written at this number under this key.
    pub(crate) fn authenticates(&self, number: u32, page: &[u8]) -> bool {
        if page.len() != PAGE_BYTES {
            return false;
        }
        let start = if number == 1 { SALT_BYTES } else { 0 };
        let (body, written) = page.split_at(PAGE_BYTES - CODE_BYTES);
        code(&self.0[..], &[&body[start..], &number.to_le_bytes()])[..] == *written
    }
}

fn code(key: &[u8], parts: &[&[u8]]) -> [u8; CODE_BYTES] {
    let mut mac = Hmac::<Sha512>::new_from_slice(key).expect("HMAC takes a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Tells whether the bytes of a page look random, as those of an encrypted page do.
pub(crate) fn is_random(page: &[u8]) -> bool {
    if page.len() != PAGE_BYTES {
        return false;
    }
    let mut counts = [0u64; 256];
    page.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let expected = PAGE_BYTES as u64 / 256;
    let squares: u64 = counts
        .iter()
        .map(|&count| count.abs_diff(expected).pow(2))
        .sum();
    squares / expected <= LARGEST_CHI_SQUARE
}

/// Tells whether a page after the first is a page of a plain B-tree.
pub(crate) fn is_tree(page: &[u8]) -> bool {
    if page.len() != PAGE_BYTES {
        return false;
    }
    let word = |at: usize| usize::from(u16::from_be_bytes([page[at], page[at + 1]]));
    let header = match page[0] {
        2 | 5 => 12,
        10 | 13 => 8,
        _ => return false,
    };
    let (cells, content) = (word(3), word(5));
    header + 2 * cells <= content && content <= PAGE_BYTES && page[7] <= 60
}
