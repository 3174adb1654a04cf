// SPDX-License-Identifier: GPL-2.0-only
//! Where decoding of a CPU's trace can begin: at each PSB, which is followed by its time.

use memchr::memmem;

use crate::perfdata::{widen, Chunk, Recording, RELEASED};

pub const PSB: [u8; 16] = [2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82];
/// perf pads data to multiples of this.
const PADDING: u64 = 8;
/// Limits for the overlap search: this many bytes of a snapshot are searched in the previous one, at this many places.
const BEGIN: usize = 64;
const MOST_PLACES: usize = 1000;

/// A PSB packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Psb {
    /// In the run.
    pub offset: usize,
    /// Its TSC. A PSB without one, or whose TSC others contradict, has the TSC of the PSB before it.
    pub tsc: u64,
    /// Whether it has a TSC that none contradicts.
    pub told: bool,
    /// What TSCs after it can be: not before the last of such TSCs (0: there is none yet), nor after the next one
    /// (`u64::MAX`: there is none).
    pub least: u64,
    pub most: u64,
}

/// Data of one CPU or thread, without holes.
#[derive(Default)]
pub struct Run {
    /// Each chunk with its offset in the run.
    chunks: Vec<(usize, Chunk)>,
    pub len: usize,
    pub psbs: Vec<Psb>,
}

impl Run {
    fn push(&mut self, chunk: Chunk) {
        self.chunks.push((self.len, chunk));
        self.len += chunk.size;
    }

    /// TSC at which perf took the data at an offset.
    pub fn reference(&self, offset: usize) -> u64 {
        let at = self.chunks.partition_point(|(begin, _)| *begin <= offset);
        self.chunks.get(at.saturating_sub(1)).map_or(0, |(_, chunk)| chunk.reference)
    }

    /// Copies data from an offset on, as many as there is room for; they must exist.
    pub fn copy(&self, begin: usize, recording: &Recording, to: &mut [u8]) {
        let end = begin + to.len();
        let at = self.chunks.partition_point(|(of, _)| *of <= begin).saturating_sub(1);
        for (of, chunk) in self.chunks[at..].iter().take_while(|(of, _)| *of < end) {
            let (from, until) = (begin.max(*of), end.min(of + chunk.size));
            if from < until {
                let piece = chunk.at + from - of..chunk.at + until - of;
                to[from - begin..until - begin].copy_from_slice(recording.file.bytes(piece.clone()));
                recording.file.release(piece);
            }
        }
    }
}

/// How many bytes at the begin of ``next`` repeat the end of ``last``, that is, how much of a snapshot the previous one
/// already has. perf does not record the position of a snapshot, which would show this.
fn overlap(last: &[u8], next: &[u8]) -> usize {
    let Some(begin) = next.get(..BEGIN) else { return 0 };
    memmem::find_iter(last, begin)
        .take(MOST_PLACES)
        .map(|at| &last[at..])
        .find(|end| next.starts_with(end))
        .map_or(0, <[u8]>::len)
}

/// Splits data into runs, each with its PSBs.
pub fn runs(chunks: &[Chunk], recording: &Recording) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut end = None;
    let mut last: &[u8] = &[];
    for &(mut chunk) in chunks {
        let mut follows = end.is_some_and(|end: u64| chunk.offset <= end && end - chunk.offset < PADDING);
        let bytes = recording.file.bytes(chunk.at..chunk.at + chunk.size);
        if recording.info.snapshot && !follows {
            let padding = last.iter().rev().take(PADDING as usize - 1).take_while(|&&b| b == 0).count();
            let known = (0..=padding).map(|n| overlap(&last[..last.len() - n], bytes)).max().unwrap_or(0);
            follows = known > 0;
            recording.file.release(chunk.at..chunk.at + chunk.size);
            chunk = Chunk { at: chunk.at + known, size: chunk.size - known, ..chunk };
        }
        last = bytes;
        match runs.last_mut().filter(|_| follows) {
            Some(run) => run.push(chunk),
            None => {
                let mut run = Run::default();
                run.push(chunk);
                runs.push(run);
            }
        }
        end = Some(chunk.offset.saturating_add(chunk.size as u64));
    }
    for run in &mut runs {
        find_psbs(run, recording);
    }
    settle(&mut runs.iter_mut().flat_map(|run| &mut run.psbs).collect::<Vec<_>>());
    runs
}

/// Time goes forward. If TSCs contradict this, as few of them as possible are wrong: one that is far ahead must not hold
/// the clock, nor change the order of what follows.
fn settle(psbs: &mut [&mut Psb]) {
    if !psbs.iter().filter(|p| p.told).is_sorted_by_key(|p| p.tsc) {
        // The longest sequence that does not go back: of each length, the one whose last TSC is least.
        let mut ends: Vec<usize> = Vec::new();
        let mut before = vec![None; psbs.len()];
        for at in (0..psbs.len()).filter(|&at| psbs[at].told) {
            let length = ends.partition_point(|&end| psbs[end].tsc <= psbs[at].tsc);
            before[at] = length.checked_sub(1).map(|shorter| ends[shorter]);
            ends.truncate(ends.len().max(length));
            match ends.get_mut(length) {
                Some(end) => *end = at,
                None => ends.push(at),
            }
        }
        let right: Vec<usize> = std::iter::successors(ends.last().copied(), |&at| before[at]).collect();
        psbs.iter_mut().for_each(|psb| psb.told = false);
        right.iter().for_each(|&at| psbs[at].told = true);
        let mut tsc = right.last().map_or(0, |&first| psbs[first].tsc);
        for psb in psbs.iter_mut() {
            tsc = if psb.told { psb.tsc } else { tsc };
            psb.tsc = tsc;
        }
    }
    let mut least = 0;
    for psb in psbs.iter_mut() {
        least = if psb.told { psb.tsc } else { least };
        psb.least = least;
    }
    let mut most = u64::MAX;
    for psb in psbs.iter_mut().rev() {
        psb.most = most;
        most = if psb.told { psb.tsc } else { most };
    }
}

/// TSC of the first PSB that has one.
pub fn first_tsc(chunks: &[Chunk], recording: &Recording) -> Option<u64> {
    let finder = memmem::Finder::new(&PSB);
    chunks.iter().find_map(|chunk| {
        let bytes = recording.file.bytes(chunk.at..chunk.at + chunk.size);
        let tsc = finder.find_iter(bytes).find_map(|at| header(&bytes[at..]).tsc);
        recording.file.release(chunk.at..chunk.at + chunk.size);
        Some(widen(tsc?, chunk.reference))
    })
}

fn find_psbs(run: &mut Run, recording: &Recording) {
    let finder = memmem::Finder::new(&PSB);
    let mut last = 0;
    for (begin, chunk) in &run.chunks {
        let bytes = recording.file.bytes(chunk.at..chunk.at + chunk.size);
        let (mut from, mut kept) = (0, 0);
        while from < bytes.len() {
            if from - kept >= RELEASED {
                recording.file.release(chunk.at + kept..chunk.at + from);
                kept = from;
            }
            let piece = bytes.len().min(from + RELEASED);
            let Some(found) = finder.find(&bytes[from..piece]) else {
                // The next piece begins with what may be the begin of a PSB.
                from = if piece < bytes.len() { piece - (PSB.len() - 1) } else { piece };
                continue;
            };
            let mut at = from + found;
            // The packet before it may end with the bytes that begin a PSB: the last 16 bytes are the PSB.
            while bytes[at + PSB.len()..].starts_with(&PSB[..2]) {
                at += 2;
            }
            from = at + PSB.len();
            let tsc = header(&bytes[at..]).tsc;
            last = tsc.map_or(last, |tsc| widen(tsc, chunk.reference));
            run.psbs.push(Psb {
                offset: begin + at,
                tsc: last,
                told: tsc.is_some(),
                least: 0,
                most: u64::MAX,
            });
        }
        recording.file.release(chunk.at + kept..chunk.at + bytes.len());
    }
    // A PSB without a TSC gets that of the previous PSB; the first ones get that of the next.
    let first = run.psbs.iter().map(|p| p.tsc).find(|&tsc| tsc != 0).unwrap_or(0);
    for psb in run.psbs.iter_mut().take_while(|p| p.tsc == 0) {
        psb.tsc = first;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub tsc: Option<u64>,
    /// Offset of the first packet after the header that has a branch.
    pub branch: usize,
    /// User code ran.
    pub user: bool,
}

/// Length of a packet without branch information. None: it has some, or is unknown or cut.
pub fn status_packet(bytes: &[u8]) -> Option<usize> {
    let &first = bytes.first()?;
    let length = match first {
        0 => 1,
        0x19 => 8,                                 // TSC
        0x59 => 2,                                 // MTC
        _ if first & 3 == 3 => cyc_length(bytes)?, // CYC
        2 => match bytes.get(1)? {
            0x03 => 4,  // CBR
            0x73 => 7,  // TMA
            0xc3 => 11, // MNT
            _ => return None,
        },
        _ => return None,
    };
    (length <= bytes.len()).then_some(length)
}

fn cyc_length(bytes: &[u8]) -> Option<usize> {
    let mut more = bytes[0] & 4 != 0;
    let mut length = 1;
    while more {
        more = bytes.get(length)? & 1 != 0;
        length += 1;
        if length > 15 {
            return None;
        }
    }
    Some(length)
}

/// Length of a packet with an address, such as TIP and FUP; 0 for others.
pub fn length(bytes: &[u8]) -> usize {
    match bytes {
        [first, ..] if matches!(first & 0x1f, 0x01 | 0x0d | 0x11 | 0x1d) => address_length(*first),
        _ => 0,
    }
}

/// The count of a CYC packet; 0 for others.
pub fn cycles(bytes: &[u8]) -> u64 {
    let Some(length) = bytes.first().filter(|&b| b & 3 == 3).and_then(|_| cyc_length(bytes)) else {
        return 0;
    };
    let first = u64::from(bytes[0] >> 3);
    let rest = bytes[1..length].iter().take(8);
    rest.enumerate().fold(first, |sum, (n, &b)| sum | u64::from(b >> 1) << (5 + 7 * n))
}

/// Length of TIP, FUP and similar packets.
fn address_length(first: u8) -> usize {
    1 + [0, 2, 4, 6, 6, 0, 8, 0][usize::from(first >> 5)]
}

/// Reads the packets between a PSB and its PSBEND.
pub fn header(bytes: &[u8]) -> Header {
    let mut header = Header::default();
    let mut at = PSB.len();
    let mut ended = false;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let length = match rest {
            [2, 0x23, ..] => {
                ended = true;
                Some(2)
            }
            _ if ended => status_packet(rest),
            [0x99, _, ..] => Some(2), // MODE
            [2, 0x43, ..] => Some(8), // PIP
            [2, 0xc8, ..] => Some(7), // VMCS
            [first, ..] if first & 0x1f == 0x1d => Some(address_length(*first)), // FUP
            _ => status_packet(rest),
        };
        let Some(length) = length else { break };
        if !ended && rest[0] & 0x1f == 0x1d {
            // Addresses of 2 or 4 bytes leave the upper ones 0.
            header.user = match rest[0] >> 5 {
                0 => false,
                3 | 6 => rest.get(length - 1).is_some_and(|&top| top & 0x80 == 0),
                _ => true,
            };
        }
        if rest[0] == 0x19 && rest.len() >= 8 {
            let mut tsc = [0; 8];
            tsc[..7].copy_from_slice(&rest[1..8]);
            header.tsc = Some(u64::from_le_bytes(tsc));
        }
        at += length;
    }
    header.branch = at.min(bytes.len());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plus(packets: &[&[u8]]) -> Vec<u8> {
        let mut bytes = PSB.to_vec();
        packets.iter().for_each(|p| bytes.extend_from_slice(p));
        bytes
    }

    #[test]
    fn a_header_tells_its_time_and_where_branches_begin() {
        let tsc: &[u8] = &[0x19, 1, 2, 3, 4, 5, 6, 7];
        let fup: &[u8] = &[0x7d, 1, 2, 3, 4, 5, 6];
        let mut bytes =
            plus(&[&[0x13], tsc, &[2, 3, 10, 0], &[0x99, 1], &[2, 0x43, 0, 0, 0, 0, 0, 0], fup, &[2, 0x23]]);
        let behind = bytes.len();
        let mut more = bytes.clone();
        more.extend([0x0b, 0, 0x59, 7, 0x1c, 0x2d]);
        let found = header(&more);
        assert_eq!(found, Header { tsc: Some(0x0007_0605_0403_0201), branch: behind + 4, user: true });
        bytes[16 + 1 + 8 + 4 + 2 + 8 + 6] = 0xff;
        assert!(!header(&bytes).user);
    }

    #[test]
    fn cycles_are_of_as_many_bytes_as_they_need() {
        assert_eq!((length(&[0x2d]), length(&[0xcd]), length(&[0x06])), (3, 9, 0));
        assert_eq!((cycles(&[0x57, 0x02]), cycles(&[0x0b]), cycles(&[0x06])), (0x2a, 1, 0));
    }

    #[test]
    fn as_few_tscs_as_possible_are_wrong() {
        let settled = |tscs: &[u64]| {
            let psb = |&tsc| Psb { offset: 0, tsc, told: tsc > 0, least: 0, most: 0 };
            let mut psbs: Vec<Psb> = tscs.iter().map(psb).collect();
            settle(&mut psbs.iter_mut().collect::<Vec<_>>());
            psbs.iter().map(|p| (p.tsc, p.most)).collect::<Vec<_>>()
        };
        let end = u64::MAX;
        assert_eq!(settled(&[1, 2, 2, 5]), [(1, 2), (2, 2), (2, 5), (5, end)]);
        // Far ahead, far behind, at the begin, and at the end, where nothing contradicts it.
        assert_eq!(settled(&[1, 99, 3]), [(1, 3), (1, 3), (3, end)]);
        assert_eq!(settled(&[10, 11, 3, 12]), [(10, 11), (11, 12), (11, 12), (12, end)]);
        assert_eq!(settled(&[99, 2, 3]), [(2, 2), (2, 3), (3, end)]);
        assert_eq!(settled(&[1, 2, 99]), [(1, 2), (2, 99), (99, end)]);
        assert_eq!(settled(&[0, 0]), [(0, end); 2]);
    }

    #[test]
    fn cut_headers_are_read_as_far_as_they_go() {
        let bytes = plus(&[&[0x19, 1, 2, 3, 4, 5, 6, 7], &[2, 0x23], &[0x07, 0x01, 0x01]]);
        for end in 0..bytes.len() {
            let found = header(&bytes[..end]);
            assert_eq!(found.tsc.is_some(), end >= 24, "{end}");
            assert!(found.branch <= end);
        }
    }
}
