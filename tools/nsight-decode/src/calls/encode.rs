// SPDX-License-Identifier: GPL-2.0-only
//! Encodes values as Parquet bytes: dictionary indices, and differences.
//!
//! Written by hand, because the crate parquet hashes every value (texts as a whole), which took half of the decoding
//! time. Here, an index costs some ns. apache/parquet-format, Encodings.md.

use std::collections::HashMap;

/// The number of bits that hold every value up to `most`; at least one, since some readers have problems with zero.
pub fn width(most: u32) -> u32 {
    (u32::BITS - most.leading_zeros()).max(1)
}

/// Runs of at least this many values are stored by their length; shorter ones are packed.
const LONG: usize = 16;
/// Values that are packed together.
const GROUP: usize = 8;
/// Groups in a packed run: with at most this many, their count fits one byte.
const MOST_GROUPS: usize = 63;

/// Indices of `width` bits each: RLE / bit-packing hybrid.
pub fn indices(values: &[u32], width: u32, out: &mut Vec<u8>) {
    let mut at = 0;
    while at < values.len() {
        let run = run_length(&values[at..]);
        if run >= LONG {
            varint((run as u64) << 1, out);
            out.extend_from_slice(&values[at].to_le_bytes()[..width.div_ceil(8) as usize]);
            at += run;
            continue;
        }
        let head = out.len();
        out.push(0);
        let mut groups = 0;
        while groups < MOST_GROUPS && at < values.len() {
            if groups > 0 && run_length(&values[at..]) >= LONG {
                break;
            }
            let end = values.len().min(at + GROUP);
            let mut group = [0; GROUP];
            group[..end - at].copy_from_slice(&values[at..end]);
            pack(&group, width, out);
            at = end;
            groups += 1;
        }
        out[head] = (groups << 1 | 1) as u8;
    }
}

/// How often the first value repeats; if more than `LONG`, counted to the end of the run.
fn run_length(values: &[u32]) -> usize {
    let first = values[0];
    values.iter().position(|&v| v != first).unwrap_or(values.len())
}

fn pack(values: &[u32; GROUP], width: u32, out: &mut Vec<u8>) {
    let mut wide = [0; GROUP];
    wide.iter_mut().zip(values).for_each(|(wide, &value)| *wide = value.into());
    pack_words(&wide, width, out);
}

const BLOCK: usize = 128;
const MINIBLOCK: usize = 32;

/// DELTA_BINARY_PACKED of 64-bit numbers.
pub fn differences(values: &[i64], out: &mut Vec<u8>) {
    varint(BLOCK as u64, out);
    varint((BLOCK / MINIBLOCK) as u64, out);
    varint(values.len() as u64, out);
    varint(zigzag(values.first().copied().unwrap_or(0)), out);
    let mut before = values.first().copied().unwrap_or(0);
    for block in values.get(1..).unwrap_or_default().chunks(BLOCK) {
        let mut steps = [0i64; BLOCK];
        for (step, &value) in steps.iter_mut().zip(block) {
            *step = value.wrapping_sub(before);
            before = value;
        }
        let steps = &mut steps[..block.len()];
        let least = steps.iter().copied().min().unwrap_or(0);
        varint(zigzag(least), out);
        let widths = out.len();
        out.extend([0; BLOCK / MINIBLOCK]);
        for (index, steps) in steps.chunks(MINIBLOCK).enumerate() {
            let mut above = [0u64; MINIBLOCK];
            for (above, &step) in above.iter_mut().zip(steps) {
                *above = step.wrapping_sub(least) as u64;
            }
            let all = above.iter().fold(0, |all, &v| all | v);
            let width = u64::BITS - all.leading_zeros();
            out[widths + index] = width as u8;
            pack_words(&above, width, out);
        }
    }
}

/// Packs values of `width` bits each, one after the other; together they fill whole bytes.
fn pack_words<const N: usize>(values: &[u64; N], width: u32, out: &mut Vec<u8>) {
    // Loops with a known width need no branches.
    macro_rules! of_width {
        ($($width:literal)*) => {
            match width {
                $($width => narrow::<N, $width>(values, out),)*
                _ => wide(values, width, out),
            }
        };
    }
    of_width!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24);
}

fn narrow<const N: usize, const WIDTH: u32>(values: &[u64; N], out: &mut Vec<u8>) {
    let mut bytes = [0u8; 32 * 24 / 8 + 8];
    let (mut bits, mut n, mut at) = (0u64, 0, 0);
    for &value in values {
        bits |= value << n;
        n += WIDTH;
        if n >= 32 {
            bytes[at..at + 4].copy_from_slice(&(bits as u32).to_le_bytes());
            (bits, n, at) = (bits >> 32, n - 32, at + 4);
        }
    }
    bytes[at..at + 8].copy_from_slice(&bits.to_le_bytes());
    out.extend_from_slice(&bytes[..N * WIDTH as usize / 8]);
}

fn wide<const N: usize>(values: &[u64; N], width: u32, out: &mut Vec<u8>) {
    let (mut bits, mut n) = (0u128, 0);
    for &value in values {
        bits |= u128::from(value) << n;
        n += width;
        if n >= 64 {
            out.extend_from_slice(&(bits as u64).to_le_bytes());
            (bits, n) = (bits >> 64, n - 64);
        }
    }
    out.extend_from_slice(&bits.to_le_bytes()[..n as usize / 8]);
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Assigns numbers to the values of a column, in the order in which they appear.
#[derive(Default)]
pub struct Dictionary {
    numbers: HashMap<i64, u32, ahash::RandomState>,
    pub values: Vec<i64>,
    last: Option<(i64, u32)>,
}

impl Dictionary {
    pub fn number(&mut self, value: i64) -> u32 {
        match self.last {
            Some((last, number)) if last == value => number,
            _ => {
                let number = *self.numbers.entry(value).or_insert_with(|| {
                    self.values.push(value);
                    self.values.len() as u32 - 1
                });
                self.last = Some((value, number));
                number
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the runs of a hybrid as the specification describes them.
    fn read_indices(bytes: &[u8], width: u32, n: usize) -> Vec<u32> {
        let mut values = Vec::new();
        let mut at = 0;
        while values.len() < n {
            let (mut head, mut shift) = (0u64, 0);
            loop {
                head |= u64::from(bytes[at] & 0x7f) << shift;
                (at, shift) = (at + 1, shift + 7);
                if bytes[at - 1] & 0x80 == 0 {
                    break;
                }
            }
            if head & 1 == 0 {
                let size = width.div_ceil(8) as usize;
                let mut word = [0; 4];
                word[..size].copy_from_slice(&bytes[at..at + size]);
                values.extend(std::iter::repeat_n(u32::from_le_bytes(word), (head >> 1) as usize));
                at += size;
            } else {
                for index in 0..(head >> 1) as usize * 8 {
                    let bit = |n: usize| u32::from(bytes[at + n / 8] >> (n % 8) & 1);
                    let first = index * width as usize;
                    values.push((0..width as usize).map(|b| bit(first + b) << b).sum());
                }
                at += (head >> 1) as usize * width as usize;
            }
        }
        assert_eq!(at, bytes.len());
        values.truncate(n);
        values
    }

    #[test]
    fn indices_are_runs_and_packed_groups() {
        let mixed: Vec<u32> =
            (0..1000).map(|i| i * 7 % 13).chain([5; 100]).chain(0..13).chain([2; 15]).collect();
        for values in [vec![], vec![3], vec![0; 40], vec![9; 15], mixed] {
            for width in [4, 7, 17, 32] {
                let mut out = Vec::new();
                indices(&values, width, &mut out);
                assert_eq!(read_indices(&out, width, values.len()), values, "{width} bits");
            }
        }
        assert_eq!([0, 1, 2, 255, 256, u32::MAX].map(width), [1, 1, 2, 8, 9, 32]);
    }

    #[test]
    fn values_are_numbered_once() {
        let mut dictionary = Dictionary::default();
        let numbers: Vec<u32> = [7, 7, -1, 0, 7, 0].map(|v| dictionary.number(v)).to_vec();
        assert_eq!((numbers, &*dictionary.values), (vec![0, 0, 1, 2, 0, 2], &[7, -1, 0][..]));
        for value in 0..10_000 {
            let number = dictionary.number(value * 4096);
            assert_eq!(dictionary.values[number as usize], value * 4096);
        }
        assert_eq!(dictionary.number(9999 * 4096), dictionary.number(9999 * 4096));
        assert_eq!(dictionary.values.len(), 10_002);
    }
}
