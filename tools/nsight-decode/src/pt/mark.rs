// SPDX-License-Identifier: GPL-2.0-only
//! Packets that report something other than branches.

/// What packets report besides branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Ptwrite,
    Mwait,
    Pwre,
    Exstop,
    Pwrx,
}

impl Mark {
    pub fn is_in(self, packet: &[u8]) -> bool {
        match (self, packet) {
            (Self::Ptwrite, [2, second, ..]) => second & 0x1f == 0x12,
            (Self::Mwait, [2, 0xc2, ..]) | (Self::Pwre, [2, 0x22, ..]) => true,
            (Self::Exstop, [2, 0x62 | 0xe2]) | (Self::Pwrx, [2, 0xa2, ..]) => true,
            _ => false,
        }
    }
}
