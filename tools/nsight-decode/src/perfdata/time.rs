// SPDX-License-Identifier: GPL-2.0-only
//! Conversion between TSC and perf's clock.

/// The linear relation, as the kernel gave it to perf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeConv {
    shift: u32,
    mult: u64,
    zero: u64,
}

impl TimeConv {
    pub fn new(shift: u64, mult: u64, zero: u64) -> Self {
        Self { shift: (shift & 63) as u32, mult, zero }
    }

    /// ns of perf's clock: tsc_to_perf_time() of tools/perf/util/tsc.c, bit for bit.
    pub fn ns(&self, tsc: u64) -> u64 {
        let (high, low) = (tsc >> self.shift, tsc & ((1 << self.shift) - 1));
        let ns = high.wrapping_mul(self.mult).wrapping_add(low.wrapping_mul(self.mult) >> self.shift);
        self.zero.wrapping_add(ns)
    }

    /// TSC at a time: perf_time_to_tsc(). For times before the TSC began, 0.
    pub fn tsc(&self, ns: u64) -> u64 {
        let t = ns.wrapping_sub(self.zero);
        if t > i64::MAX as u64 || self.mult == 0 {
            return 0;
        }
        let tsc = (u128::from(t) << self.shift) / u128::from(self.mult);
        u64::try_from(tsc).unwrap_or(u64::MAX)
    }
}

/// A packet's TSC has 56 bits. Returns the full TSC that is nearest to the time when perf took the data.
pub fn widen(tsc: u64, reference: u64) -> u64 {
    const TOP: u64 = 1 << 56;
    let near = reference & !(TOP - 1) | tsc & (TOP - 1);
    if near > reference.saturating_add(TOP / 2) {
        near.saturating_sub(TOP)
    } else if near.saturating_add(TOP / 2) < reference {
        near.saturating_add(TOP)
    } else {
        near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ns_are_computed_as_perf_does() {
        // 2 ticks of TSC are 1 ns: mult / 2^shift = 1/2; the low part is rounded down separately
        let conv = TimeConv::new(4, 8, 1000);
        assert_eq!(conv.ns(0), 1000);
        assert_eq!(conv.ns(33), 1000 + 16);
        let back = TimeConv::new(4, 8, 1000u64.wrapping_neg());
        assert_eq!(back.ns(4000), 1000);
    }

    #[test]
    fn tsc_is_the_way_back() {
        let conv = TimeConv::new(31, 715_827_882, 5_000_000);
        for ns in [5_000_000, 6_000_000, 123_456_789_012, 9_000_000_000_000_000] {
            assert!(conv.ns(conv.tsc(ns)).abs_diff(ns) <= 1, "{ns}");
        }
        assert_eq!(conv.tsc(4_999_999), 0);
        assert_eq!(TimeConv::default().tsc(1), 0);
    }

    #[test]
    fn the_upper_byte_comes_from_the_reference() {
        let reference = 0x0200_0000_0000_1000;
        assert_eq!(widen(0x800, reference), 0x0200_0000_0000_0800);
        // just before the 56 bits wrapped
        assert_eq!(widen(0x00ff_ffff_ffff_fff0, reference), 0x01ff_ffff_ffff_fff0);
        // and a packet after the reference that was taken before the wrap
        assert_eq!(widen(0x10, 0x01ff_ffff_ffff_fff0), 0x0200_0000_0000_0010);
        assert_eq!(widen(5, 0), 5);
    }
}
