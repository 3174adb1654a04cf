// SPDX-License-Identifier: GPL-2.0-only
//! Single packets, classified by what they mean for the position of execution (Intel SDM, volume 3, "Trace Packets and
//! Data Types").

use super::index::{self, PSB};

/// Packet kinds, as far as they matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Psb,
    PsbEnd,
    /// With this number of branches.
    Tnt(u32),
    Tip,
    Enable,
    Disable,
    Fup,
    Overflow,
    /// A FUP follows that belongs to it and not to an interrupt. Within a PSB+, the kind is PSB.
    Bound,
    Other,
}

/// A packet's kind and length. None: damaged, cut or unknown.
pub fn packet(bytes: &[u8]) -> Option<(Kind, usize)> {
    let first = *bytes.first()?;
    let (kind, length) = match first {
        2 => match *bytes.get(1)? {
            0x82 if bytes.starts_with(&PSB) => (Kind::Psb, PSB.len()),
            0xf3 => (Kind::Overflow, 2),
            0x23 => (Kind::PsbEnd, 2),
            0x83 | 0x62 => (Kind::Other, 2), // TraceStop, EXSTOP
            0xe2 => (Kind::Bound, 2),        // EXSTOP with FUP
            0xc2 => (Kind::Bound, 10),       // MWAIT
            0xa3 => (Kind::Tnt(branches(little(bytes.get(2..8)?))), 8),
            0x43 => (Kind::Other, 8),        // PIP
            0xc8 | 0xa2 => (Kind::Other, 7), // VMCS, PWRX
            0x22 => (Kind::Other, 4),        // PWRE
            second if second & 0x1f == 0x12 => {
                let length = 2 + if second >> 5 & 1 == 1 { 8 } else { 4 };
                (if second & 0x80 == 0 { Kind::Other } else { Kind::Bound }, length)
                // PTW
            }
            // CFE, with or without a FUP
            0x13 => (if bytes.get(2)? & 0x80 == 0 { Kind::Other } else { Kind::Bound }, 4),
            0x53 => (Kind::Other, 11), // EVD
            _ => (Kind::Other, index::status_packet(bytes)?),
        },
        // MODE.TSX binds its FUP, except at an abort, which is handled like an interrupt. MODE.Exec has a FUP if it reports
        // the interrupt flag, otherwise a TIP.
        0x99 => (if bytes.get(1)? & 0xe2 == 0x22 { Kind::Other } else { Kind::Bound }, 2),
        _ if first & 1 == 0 && first > 2 => (Kind::Tnt(branches(u64::from(first) >> 1)), 1),
        _ => match first & 0x1f {
            0x0d => (Kind::Tip, index::length(bytes)),
            0x11 => (Kind::Enable, index::length(bytes)),
            0x01 => (Kind::Disable, index::length(bytes)),
            0x1d => (Kind::Fup, index::length(bytes)),
            _ => (Kind::Other, index::status_packet(bytes)?),
        },
    };
    (length <= bytes.len()).then_some((kind, length))
}

/// Number of branches in a TNT packet without its header: each bit below the highest set bit is a branch.
fn branches(payload: u64) -> u32 {
    payload.checked_ilog2().unwrap_or(0)
}

/// A number of up to 8 bytes.
pub fn little(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    let n = bytes.len().min(8);
    all[..n].copy_from_slice(&bytes[..n]);
    u64::from_le_bytes(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_told_apart() {
        for (bytes, kind, length) in [
            (&[0x04][..], Kind::Tnt(1), 1),
            (&[0x06], Kind::Tnt(1), 1),
            (&[0x80], Kind::Tnt(6), 1),
            (&[2, 0xa3, 1, 0, 0, 0, 0, 0x80], Kind::Tnt(47), 8),
            (&[2, 0xa3, 2, 0, 0, 0, 0, 0], Kind::Tnt(1), 8),
            (&[0x2d, 1, 2], Kind::Tip, 3),
            (&[0x0d], Kind::Tip, 1),
            (&[0xd1, 0, 0, 0, 0, 0, 0, 0, 0], Kind::Enable, 9),
            (&[0x01], Kind::Disable, 1),
            (&[0x7d, 0, 0, 0, 0, 0, 0], Kind::Fup, 7),
            (&[2, 0xf3], Kind::Overflow, 2),
            (&[2, 0x23], Kind::PsbEnd, 2),
            (&[2, 0xe2], Kind::Bound, 2),
            (&[0x99, 1], Kind::Bound, 2),
            (&[0x99, 0x21], Kind::Bound, 2),
            (&[0x99, 0x22], Kind::Other, 2),
            (&[2, 0x13, 1, 14], Kind::Other, 4),
            (&[2, 0x13, 0x82, 0], Kind::Bound, 4),
            (&[0x0b], Kind::Other, 1),
            (&[0], Kind::Other, 1),
        ] {
            let mut longer = bytes.to_vec();
            longer.push(0xff);
            assert_eq!(packet(&longer), Some((kind, length)), "{bytes:x?}");
            assert_eq!(packet(&bytes[..length - 1]), None, "{bytes:x?}");
        }
        assert_eq!(packet(&PSB), Some((Kind::Psb, 16)));
        assert_eq!(packet(&[2, 0xff, 0, 0]), None);
    }
}
