//! Reads the write-ahead log beside a database without SQLite, which would change it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::connection::PAGE_BYTES;

const HEADER_BYTES: usize = 32;
const FRAME_BYTES: usize = 24;
/// The first word of a log, but for its last bit, which tells the byte order of its checksums.
const MARK: u32 = 0x377f_0682;
/// Pages kept to look at.
const SAMPLES: usize = 8;

/// What the committed frames of a log hold.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Numbers of the pages.
    pub(crate) pages: BTreeSet<u32>,
    /// The first page as of the last commit.
    pub(crate) first: Option<Vec<u8>>,
    /// Some pages with their numbers.
    pub(crate) samples: Vec<(u32, Vec<u8>)>,
    /// Pages of the database as of the last commit.
    pub(crate) database_pages: u32,
}

/// Reads a log; `None` when there is none, or none with a commit.
pub(crate) fn read(path: &Path) -> io::Result<Option<Log>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut input = BufReader::with_capacity(1 << 16, file);
    let mut header = [0; HEADER_BYTES];
    if !fill(&mut input, &mut header)? {
        return Ok(None);
    }
    let Some(mut sum) = check_header(&header) else {
        return Ok(None);
    };
    let (mut log, mut pending) = (Log::default(), Log::default());
    let mut frame = vec![0; FRAME_BYTES + PAGE_BYTES];
    while fill(&mut input, &mut frame)? {
        let (head, page) = frame.split_at(FRAME_BYTES);
        sum.add(&head[..8]);
        sum.add(page);
        if head[8..16] != header[16..24] || !sum.stands_in(&head[16..24]) {
            break;
        }
        pending.take(word(head, 0), page);
        let size = word(head, 4);
        if size != 0 {
            log.database_pages = size;
            log.merge(std::mem::take(&mut pending));
        }
    }
    Ok(Some(log).filter(|log| log.database_pages > 0))
}

impl Log {
    fn take(&mut self, number: u32, page: &[u8]) {
        self.pages.insert(number);
        if number == 1 {
            self.first = Some(page.to_vec());
        }
        if self.samples.len() < SAMPLES {
            self.samples.push((number, page.to_vec()));
        }
    }

    fn merge(&mut self, mut committed: Self) {
        self.pages.append(&mut committed.pages);
        self.first = committed.first.or(self.first.take());
        let room = SAMPLES - self.samples.len();
        self.samples
            .extend(committed.samples.into_iter().take(room));
    }
}

fn check_header(header: &[u8; HEADER_BYTES]) -> Option<Checksum> {
    let mark = word(header, 0);
    if mark & !1 != MARK || word(header, 8) as usize != PAGE_BYTES {
        return None;
    }
    let mut sum = Checksum {
        big_endian: mark & 1 == 1,
        sums: (0, 0),
    };
    sum.add(&header[..24]);
    sum.stands_in(&header[24..]).then_some(sum)
}

/// The running checksum of a log.
struct Checksum {
    big_endian: bool,
    sums: (u32, u32),
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks_exact(8) {
            let words = [0, 4].map(|at| match self.big_endian {
                true => word(pair, at),
                false => word(pair, at).swap_bytes(),
            });
            let (a, b) = self.sums;
            let a = a.wrapping_add(words[0]).wrapping_add(b);
            let b = b.wrapping_add(words[1]).wrapping_add(a);
            self.sums = (a, b);
        }
    }

    fn stands_in(&self, bytes: &[u8]) -> bool {
        (word(bytes, 0), word(bytes, 4)) == self.sums
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..at + 4].try_into().expect("four bytes");
    u32::from_be_bytes(word)
}

/// Fills a buffer; false when the input ends before.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
