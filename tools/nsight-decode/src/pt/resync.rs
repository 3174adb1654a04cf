// SPDX-License-Identifier: GPL-2.0-only
//! Where decoding can resume before the next PSB: at the next packet with an address.
//!
//! libipt can enter a trace only at a PSB. So a PSB+ is written over the packets in front of that place, in the slice's
//! copy of the trace. Those packets were read already, or cannot be used because their code is missing. Offsets do not
//! change.

use super::bounds::All;
use super::clock::{Clock, Rates};
use super::trace::Packets;
use crate::packets::index::PSB;
use crate::packets::kinds::{little, packet, Kind};

/// A place where decoding can resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// libipt reads the packets from here on.
    pub offset: usize,
    pub ip: u64,
    /// There is an overflow before it.
    pub overflow: bool,
    /// Tracing begins here.
    pub enable: bool,
}

/// Reads packets from a PSB on, and follows address and time.
#[derive(Debug)]
pub struct Scanner {
    pub at: usize,
    clock: Clock,
    /// Which TSCs can be right.
    bounds: All,
    last_ip: u64,
    /// Payload of MODE.Exec; 64 bits by default.
    mode: u8,
    bound: bool,
    overflow: bool,
    /// A virtual machine runs: addresses belong to the guest.
    guest: bool,
}

impl Scanner {
    pub fn new(psb: usize, rates: Rates, bounds: All) -> Self {
        Self {
            at: psb,
            clock: Clock::new(rates),
            bounds,
            last_ip: 0,
            mode: 1,
            bound: false,
            overflow: false,
            guest: false,
        }
    }

    /// The first place from `from` up to `end` (both in `trace`).
    pub fn next(&mut self, trace: &mut impl Packets, from: usize, end: usize) -> Option<Place> {
        while self.at < end {
            let begin = self.at;
            let bytes = trace.at(begin);
            let (kind, length) = packet(bytes)?;
            self.at += length;
            if kind == Kind::Psb {
                self.clock.bounds = self.bounds.at(begin);
            }
            let ip = self.take(kind, &bytes[..length]);
            let (overflow, enable) = (self.overflow, kind == Kind::Enable);
            let place = |offset| ip.map(|ip| Place { offset, ip, overflow, enable });
            let found = match kind {
                Kind::Tip | Kind::Enable => place(self.at),
                Kind::Fup if self.overflow => place(self.at),
                Kind::Fup if !self.bound => place(begin),
                _ => None,
            };
            match kind {
                Kind::Bound => self.bound = true,
                Kind::Overflow => self.overflow = true,
                Kind::Tip | Kind::Enable | Kind::Disable | Kind::Fup | Kind::Psb => {
                    self.bound = kind == Kind::Psb;
                    if found.is_some() || kind == Kind::Psb {
                        self.overflow = false;
                    }
                }
                Kind::Tnt(_) | Kind::PsbEnd | Kind::Other => {}
            }
            if found.is_some() && begin >= from && !self.guest {
                return found;
            }
        }
        None
    }

    /// Takes address, mode and time from a packet. Returns its address.
    fn take(&mut self, kind: Kind, bytes: &[u8]) -> Option<u64> {
        match (kind, bytes) {
            (Kind::Psb, _) => self.last_ip = 0,
            (Kind::Tip | Kind::Enable | Kind::Disable | Kind::Fup, _) => return self.address(bytes),
            (_, [2, 0x43, root, ..]) => self.guest = root & 1 == 1,
            (_, [0x99, mode]) if mode >> 5 == 0 => self.mode = *mode,
            _ => _ = self.clock.take(bytes),
        }
        None
    }

    fn address(&mut self, bytes: &[u8]) -> Option<u64> {
        let payload = little(&bytes[1..]);
        let keep = |bits: u32| self.last_ip >> bits << bits | payload;
        self.last_ip = match bytes[0] >> 5 {
            1 => keep(16),
            2 => keep(32),
            3 => ((payload << 16) as i64 >> 16) as u64,
            4 => keep(48),
            6 => payload,
            _ => return None,
        };
        Some(self.last_ip)
    }

    /// The PSB+ for the packets in front of a place; not before TSC `least`.
    pub fn psb_plus(&self, place: Place, least: Option<u64>) -> Vec<u8> {
        let mut bytes = PSB.to_vec();
        bytes.extend(self.clock.packets(least));
        bytes.extend([0x99, self.mode]);
        bytes.push(0x1d | 6 << 5);
        bytes.extend(place.ip.to_le_bytes());
        bytes.extend([2, 0x23]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::index;

    const RATES: Rates = Rates { tsc_ctc: (84, 1), mtc_shift: Some(3), nominal: 20 };

    fn trace(packets: &[&[u8]]) -> Vec<u8> {
        let mut bytes = PSB.to_vec();
        let tsc: &[u8] = &[0x19, 0, 0, 1, 0, 0, 0, 0]; // 65536
        let tma: &[u8] = &[2, 0x73, 0xfe, 0x07, 0, 10, 0]; // CTC 0x7fe, 10 ticks ago
        let cbr: &[u8] = &[2, 3, 10, 0]; // half the nominal rate
        let fup: &[u8] = &[0x7d, 1, 0, 0, 0x81, 0xff, 0xff];
        [tsc, tma, cbr, fup, &[2, 0x23]].iter().chain(packets).for_each(|p| bytes.extend_from_slice(p));
        bytes
    }

    fn places(bytes: &[u8], from: usize) -> (Vec<Place>, Scanner) {
        let mut scanner = Scanner::new(0, RATES, All::default());
        let found = std::iter::from_fn(|| scanner.next(&mut &*bytes, from, bytes.len())).collect();
        (found, scanner)
    }

    #[test]
    fn addresses_are_completed_by_what_went_before() {
        let header = trace(&[]).len();
        let bytes =
            trace(&[&[6], &[0x2d, 0x34, 0x12], &[0x4d, 0x78, 0x56, 0x34, 0x12], &[0x0d], &[0x3d, 1, 0]]);
        let (found, _) = places(&bytes, header);
        let ips: Vec<_> = found.iter().map(|p| p.ip).collect();
        assert_eq!(ips, [0xffff_ffff_8100_1234, 0xffff_ffff_1234_5678, 0xffff_ffff_1234_0001]);
        // after a TIP, before an interrupt's FUP
        let offsets: Vec<_> = found.iter().map(|p| p.offset - header).collect();
        assert_eq!(offsets, [4, 9, 10]);
    }

    #[test]
    fn of_a_fup_that_belongs_to_another_packet_nothing_begins() {
        let fup: &[u8] = &[0x3d, 1, 0];
        for bound in [&[2, 0xe2][..], &[0x99, 0x20], &[2, 0x92, 1, 2, 3, 4]] {
            let bytes = trace(&[bound, fup, &[0x2d, 2, 0]]);
            let (found, _) = places(&bytes, trace(&[]).len());
            assert_eq!(found.iter().map(|p| p.ip & 0xffff).collect::<Vec<_>>(), [2], "{bound:x?}");
        }
    }

    #[test]
    fn overflows_and_begins_of_tracing_are_told() {
        let bytes = trace(&[&[2, 0xf3], &[0x3d, 1, 0], &[0x21, 7, 0], &[0x31, 2, 0]]);
        let (found, _) = places(&bytes, trace(&[]).len());
        assert_eq!(
            found.iter().map(|p| (p.overflow, p.enable)).collect::<Vec<_>>(),
            [(true, false), (false, true)]
        );
        assert_eq!(found[0].offset, trace(&[]).len() + 5);
    }

    #[test]
    fn time_goes_on_by_cycles_and_mtc() {
        // 8 cycles at half the nominal rate: 16 ticks
        let (_, scanner) = places(&trace(&[&[0x43]]), 0);
        assert_eq!(scanner.clock.now(), Some(65536 + 16));
        // CTC 0x800 is 2 ticks of 84 after 0x7fe, which was at 65526; its MTC has 0x00
        let (_, scanner) = places(&trace(&[&[0x43], &[0x59, 0]]), 0);
        assert_eq!(scanner.clock.now(), Some(65526 + 2 * 84));
        let (_, scanner) = places(&trace(&[&[0x59, 0], &[0x59, 2], &[0x0b]]), 0);
        assert_eq!(scanner.clock.now(), Some(65526 + 18 * 84 + 2));
    }

    #[test]
    fn a_header_says_what_was_read() {
        let bytes = trace(&[&[0x59, 0], &[0x2d, 0x34, 0x12]]);
        let (found, scanner) = places(&bytes, trace(&[]).len());
        let plus = scanner.psb_plus(found[0], Some(65526 + 170));
        let header = index::header(&plus);
        assert_eq!((header.tsc, header.user, header.branch), (Some(65526 + 170), false, plus.len()));
        let (again, scanner) = places(&plus, 0);
        assert_eq!((again.len(), scanner.last_ip), (0, found[0].ip));
        assert_eq!(scanner.clock.packets(None)[8..], [2, 0x73, 0, 8, 0, 2, 0, 2, 3, 10, 0]);
    }

    #[test]
    fn what_a_virtual_machine_runs_is_no_place() {
        let (entry, exit): (&[u8], &[u8]) = (&[2, 0x43, 1, 0, 0, 0, 0, 0], &[2, 0x43, 2, 0, 0, 0, 0, 0]);
        let tip: &[u8] = &[0x2d, 1, 0];
        let bytes = trace(&[entry, tip, tip, &[0x3d, 5, 0], exit, &[0x2d, 7, 0]]);
        let (found, _) = places(&bytes, trace(&[]).len());
        assert_eq!(found.iter().map(|p| p.ip & 0xffff).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn damaged_packets_end_it() {
        let header = trace(&[]).len();
        let bytes = trace(&[&[2, 0xff], &[0x2d, 0x34, 0x12]]);
        assert_eq!(places(&bytes, header).0, []);
        let mut noise = trace(&[&[0; 64]]);
        let mut state = 1_u32;
        for round in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = header + state as usize % 64;
            noise[at] = (state >> 24) as u8;
            let (found, _) = places(&noise, 0);
            assert!(found.windows(2).all(|p| p[0].offset <= p[1].offset), "round {round}");
        }
    }
}
