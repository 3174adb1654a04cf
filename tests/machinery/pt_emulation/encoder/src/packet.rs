// SPDX-License-Identifier: GPL-2.0-only
//! Intel PT packets as bytes: Intel SDM volume 3, chapter "Intel Processor Trace", section
//! "Trace Packets and Data Types".

/// A packet. IP payloads are whole addresses; `Buffer` compresses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    Pad,
    Psb,
    Psbend,
    Ovf,
    /// Taken / not taken, the oldest branch in the highest of `n` bits; at most 47.
    Tnt {
        bits: u64,
        n: u32,
    },
    Tip(u64),
    TipPge(u64),
    /// None: the address is suppressed.
    TipPgd(Option<u64>),
    Fup(u64),
    Pip {
        cr3: u64,
    },
    /// CS.L and CS.D: 64-bit mode is L alone.
    ModeExec64,
    Tsc(u64),
    Tma {
        ctc: u16,
        fast_counter: u16,
    },
    Mtc(u8),
    Cyc(u64),
    Cbr(u8),
    TraceStop,
    Exstop,
    Pwre {
        c_state: u8,
    },
    Pwrx {
        c_state: u8,
    },
}

impl Packet {
    pub fn name(&self) -> &'static str {
        match self {
            Packet::Pad => "PAD",
            Packet::Psb => "PSB",
            Packet::Psbend => "PSBEND",
            Packet::Ovf => "OVF",
            Packet::Tnt { .. } => "TNT",
            Packet::Tip(_) => "TIP",
            Packet::TipPge(_) => "TIP.PGE",
            Packet::TipPgd(_) => "TIP.PGD",
            Packet::Fup(_) => "FUP",
            Packet::Pip { .. } => "PIP",
            Packet::ModeExec64 => "MODE.Exec",
            Packet::Tsc(_) => "TSC",
            Packet::Tma { .. } => "TMA",
            Packet::Mtc(_) => "MTC",
            Packet::Cyc(_) => "CYC",
            Packet::Cbr(_) => "CBR",
            Packet::TraceStop => "TraceStop",
            Packet::Exstop => "EXSTOP",
            Packet::Pwre { .. } => "PWRE",
            Packet::Pwrx { .. } => "PWRX",
        }
    }
}

/// Branches that fit a short TNT packet (one byte), and a long one (eight).
pub const SHORT_TNT: u32 = 6;
pub const LONG_TNT: u32 = 47;

/// The bytes of packets, and the address against which the next one is compressed.
#[derive(Debug, Default)]
pub struct Buffer {
    pub bytes: Vec<u8>,
    /// None after a PSB, which sets it to 0, and after an overflow, where libipt also resets it.
    last_ip: Option<u64>,
}

impl Buffer {
    pub fn push(&mut self, packet: Packet) {
        let bytes = &mut self.bytes;
        match packet {
            Packet::Pad => bytes.push(0),
            Packet::Psb => {
                bytes.extend([0x02, 0x82].repeat(8));
                self.last_ip = None;
            }
            Packet::Psbend => bytes.extend([0x02, 0x23]),
            Packet::Ovf => {
                bytes.extend([0x02, 0xf3]);
                self.last_ip = None;
            }
            Packet::Tnt { bits, n } if n <= SHORT_TNT => bytes.push(((1 << n | bits) << 1) as u8),
            Packet::Tnt { bits, n } => {
                debug_assert!(n <= LONG_TNT);
                bytes.extend([0x02, 0xa3]);
                bytes.extend(&(1 << n | bits).to_le_bytes()[..6]);
            }
            Packet::Tip(ip) => self.ip(0x0d, Some(ip)),
            Packet::TipPge(ip) => self.ip(0x11, Some(ip)),
            Packet::TipPgd(ip) => self.ip(0x01, ip),
            Packet::Fup(ip) => self.ip(0x1d, Some(ip)),
            Packet::Pip { cr3 } => {
                bytes.extend([0x02, 0x43]);
                bytes.extend(&(cr3 >> 5 << 1).to_le_bytes()[..6]);
            }
            Packet::ModeExec64 => bytes.extend([0x99, 0x01]),
            Packet::Tsc(tsc) => {
                bytes.push(0x19);
                bytes.extend(&tsc.to_le_bytes()[..7]);
            }
            Packet::Tma { ctc, fast_counter } => {
                bytes.extend([0x02, 0x73]);
                bytes.extend(ctc.to_le_bytes());
                bytes.push(0);
                bytes.extend((fast_counter & 0x1ff).to_le_bytes());
            }
            Packet::Mtc(ctc) => bytes.extend([0x59, ctc]),
            Packet::Cyc(cycles) => cyc(bytes, cycles),
            Packet::Cbr(ratio) => bytes.extend([0x02, 0x03, ratio, 0]),
            Packet::TraceStop => bytes.extend([0x02, 0x83]),
            Packet::Exstop => bytes.extend([0x02, 0x62]),
            Packet::Pwre { c_state } => bytes.extend([0x02, 0x22, 0, c_state << 4]),
            Packet::Pwrx { c_state } => bytes.extend([0x02, 0xa2, c_state << 4 | c_state, 0, 0, 0, 0]),
        }
    }

    /// An IP packet, in the shortest form from which the address can be restored with the last one.
    ///
    /// The first one after a PSB is not shortened, nor is that after an overflow: perf (6.1 to 6.12 at least) completes
    /// the FUP within PSB+ with the address from before the PSB. For a FUP that is shortened against 0, the result is
    /// wrong.
    fn ip(&mut self, opcode: u8, ip: Option<u64>) {
        let Some(ip) = ip else {
            self.bytes.push(opcode);
            return;
        };
        let changed = self.last_ip.map_or(u64::MAX, |last| ip ^ last);
        let sign_extended = (ip << 16) as i64 >> 16;
        let (form, n) = match () {
            () if changed >> 16 == 0 => (1, 2),
            () if changed >> 32 == 0 => (2, 4),
            () if sign_extended as u64 == ip => (3, 6),
            () if changed >> 48 == 0 => (4, 6),
            () => (6, 8),
        };
        self.bytes.push(form << 5 | opcode);
        self.bytes.extend(&ip.to_le_bytes()[..n]);
        self.last_ip = Some(ip);
    }
}

fn cyc(bytes: &mut Vec<u8>, cycles: u64) {
    let mut rest = cycles >> 5;
    bytes.push((cycles as u8) << 3 | u8::from(rest != 0) << 2 | 3);
    while rest != 0 {
        let more = rest >> 7;
        bytes.push((rest as u8) << 1 | u8::from(more != 0));
        rest = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(packets: &[Packet], expected: &[u8]) {
        let mut buffer = Buffer::default();
        for &packet in packets {
            buffer.push(packet);
        }
        assert_eq!(buffer.bytes, expected);
    }

    #[test]
    fn tnt_has_the_oldest_branch_highest_below_the_stop_bit() {
        check(&[Packet::Tnt { bits: 0b1, n: 1 }], &[0b110]);
        check(&[Packet::Tnt { bits: 0b100110, n: 6 }], &[0b1100_1100]);
        // seven do not fit a byte: stop bit 7, then the bits
        check(&[Packet::Tnt { bits: 0b100_0001, n: 7 }], &[0x02, 0xa3, 0b1100_0001, 0, 0, 0, 0, 0]);
        let full = (1 << 47) - 1;
        let bytes = [0x02, 0xa3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        check(&[Packet::Tnt { bits: full, n: 47 }], &bytes);
    }

    #[test]
    fn addresses_take_the_shortest_form() {
        let first = [0x6d, 0x78, 0x56, 0x34, 0x12, 0, 0];
        check(&[Packet::Tip(0x1234_5678)], &first);
        check(&[Packet::Tip(0x1234_5678), Packet::Tip(0x1234_0001)], &[&first[..], &[0x2d, 1, 0]].concat());
        let update = [0x4d, 0x78, 0x56, 0x34, 0x13];
        check(&[Packet::Tip(0x1234_5678), Packet::Tip(0x1334_5678)], &[&first[..], &update].concat());
        let kernel = Packet::Fup(0xffff_ffff_8100_0000);
        let form3 = [0x7d, 0x00, 0x00, 0x00, 0x81, 0xff, 0xff];
        check(&[kernel], &form3);
        check(&[kernel, Packet::Tip(0xffff_ffff_8100_0002)], &[&form3[..], &[0x2d, 2, 0]].concat());
        // 57-bit addresses are not sign extensions of 48 bits: whole, then an update of the lower 48
        let high = 0x00ff_1122_3344_5566;
        let whole = [0xcd, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xff, 0x00];
        check(&[Packet::Tip(high)], &whole);
        let update = [0x8d, 0x66, 0x55, 0x44, 0x33, 0x23, 0x11];
        check(&[Packet::Tip(high), Packet::Tip(high + (1 << 32))], &[&whole[..], &update].concat());
        // a suppressed address does not change the last one
        let bytes = [0x6d, 0x34, 0x12, 0, 0, 0, 0, 0x01, 0x2d, 0x35, 0x12];
        check(&[Packet::Tip(0x1234), Packet::TipPgd(None), Packet::Tip(0x1235)], &bytes);
    }

    #[test]
    fn psb_forgets_the_last_address() {
        let mut expected = vec![0x6d, 0x78, 0x56, 0x34, 0x12, 0, 0];
        expected.extend([0x02, 0x82].repeat(8));
        expected.extend([0x7d, 0x78, 0x56, 0x34, 0x12, 0, 0]);
        check(&[Packet::Tip(0x1234_5678), Packet::Psb, Packet::Fup(0x1234_5678)], &expected);
    }

    #[test]
    fn cycle_counts_grow_by_seven_bits_after_five() {
        check(&[Packet::Cyc(31)], &[0xfb]);
        check(&[Packet::Cyc(32)], &[0x07, 0x02]);
        check(&[Packet::Cyc((1 << 12) - 1)], &[0xff, 0xfe]);
        check(&[Packet::Cyc(1 << 12)], &[0x07, 0x01, 0x02]);
    }

    #[test]
    fn the_other_packets_have_their_payload_where_it_belongs() {
        check(&[Packet::Tsc(0x0011_2233_4455_6677)], &[0x19, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        check(&[Packet::Tma { ctc: 0x1234, fast_counter: 0x1ab }], &[0x02, 0x73, 0x34, 0x12, 0, 0xab, 0x01]);
        // CR3 0x12345000: bits 51..5 above the non-root bit
        check(&[Packet::Pip { cr3: 0x1234_5020 }], &[0x02, 0x43, 0x02, 0x45, 0x23, 0x01, 0, 0]);
        check(&[Packet::Mtc(9), Packet::Cbr(10), Packet::Ovf], &[0x59, 9, 2, 3, 10, 0, 2, 0xf3]);
        check(&[Packet::ModeExec64, Packet::Psbend, Packet::TraceStop], &[0x99, 1, 2, 0x23, 2, 0x83]);
        check(&[Packet::Exstop, Packet::Pwre { c_state: 1 }], &[2, 0x62, 2, 0x22, 0, 0x10]);
        check(&[Packet::Pwrx { c_state: 1 }, Packet::Pad], &[2, 0xa2, 0x11, 0, 0, 0, 0, 0]);
    }
}
