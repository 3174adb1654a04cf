// SPDX-License-Identifier: GPL-2.0-only
//! Computes time from packets.

use super::bounds::Bounds;
use crate::packets::index;
use crate::packets::kinds::little;

/// The rates that packets use for time.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// TSC ticks per CTC tick, as a fraction.
    pub tsc_ctc: (u64, u64),
    pub mtc_shift: Option<u8>,
    /// TSC per bus clock.
    pub nominal: u64,
}

/// TSC (56 bits) at a position in the packets.
#[derive(Clone, Debug)]
pub struct Clock {
    rates: Rates,
    cbr: Option<[u8; 2]>,
    /// How often `cbr` has changed.
    n_changes: u32,
    /// TSC at the last packet that gave one, and cycles since then.
    tsc: Option<u64>,
    cycles: u64,
    /// CTC at a known TSC: 16 bits.
    ctc: Option<(u16, u64)>,
    /// Ticks and cycles up to the next packet that gives a TSC.
    ahead: Option<(u64, u64)>,
    /// That TSC.
    next: Option<u64>,
    /// A TSC outside is damaged, and not used.
    pub bounds: Bounds,
    /// The last one was.
    damaged: bool,
}

/// CBR reports a ratio in whole steps. The ratio between two packets that give a TSC may differ from it by 1/STEP. If
/// it differs by more, the core was idle between them, or packets were lost.
const STEP: u64 = 8;
/// Number of CTC bits in a TMA packet.
const CTC_BITS: u8 = 16;

impl Clock {
    pub fn new(rates: Rates) -> Self {
        Self {
            rates,
            cbr: None,
            n_changes: 0,
            tsc: None,
            cycles: 0,
            ctc: None,
            ahead: None,
            next: None,
            bounds: Bounds::NONE,
            damaged: false,
        }
    }

    pub fn rates(&self) -> Rates {
        self.rates
    }

    /// Cycles since the last packet that gave a TSC.
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Sets how the clock continues up to the next packet that gives a TSC: `next` is the clock directly after that
    /// packet, and `cycles` is what it had counted before it. `lost`: packets, and maybe cycles, were lost between.
    pub fn look_ahead(&mut self, next: &Self, cycles: u64, lost: bool) {
        self.next = next.tsc;
        self.ahead = match (self.tsc, next.tsc) {
            // After a PSB, CBR may come after TSC.
            (Some(from), Some(to)) if self.n_changes == next.n_changes && !lost => {
                let (ticks, by_cbr) = (to.saturating_sub(from), next.by_cbr(cycles));
                let near = cycles > 0 && ticks.abs_diff(by_cbr) <= by_cbr / STEP;
                Some((if near { ticks } else { by_cbr }, cycles))
            }
            _ => None,
        };
    }

    /// Reads a packet of any kind. Returns whether it gives a TSC.
    pub fn take(&mut self, packet: &[u8]) -> bool {
        match packet {
            [2, 0x03, low, high] => self.set_cbr([*low, *high]),
            [0x19, tsc @ ..] => {
                let tsc = little(tsc);
                self.damaged = !self.bounds.contain(tsc);
                if !self.damaged {
                    self.set_tsc(tsc);
                }
                return !self.damaged;
            }
            // It belongs to the TSC before it.
            [2, 0x73, ..] if self.damaged => {}
            [2, 0x73, low, high, _, fast, more] => {
                let fast = u64::from(*fast) | u64::from(more & 1) << 8;
                let since = self.tsc.map(|tsc| tsc.saturating_sub(fast));
                self.ctc = since.map(|tsc| (u16::from_le_bytes([*low, *high]), tsc));
            }
            [0x59, count] => return self.take_mtc(*count),
            _ => self.cycles = self.cycles.saturating_add(index::cycles(packet)),
        }
        false
    }

    /// Cycles before this packet have the previous frequency.
    fn set_cbr(&mut self, cbr: [u8; 2]) {
        if self.cycles > 0 && self.cbr.is_some_and(|before| before != cbr) {
            (self.tsc, self.cycles, self.ahead) = (self.now(), 0, None);
            self.n_changes += 1;
        }
        self.cbr = Some(cbr);
    }

    fn set_tsc(&mut self, tsc: u64) {
        (self.tsc, self.cycles, self.ctc, self.ahead, self.next) = (Some(tsc), 0, None, None, None);
    }

    /// An MTC has 8 bits of the CTC, and is sent when these change.
    fn take_mtc(&mut self, count: u8) -> bool {
        let shift = self.rates.mtc_shift.filter(|&shift| shift < CTC_BITS);
        let (Some(shift), Some((ctc, tsc)), (by @ 1.., of @ 1..)) = (shift, self.ctc, self.rates.tsc_ctc)
        else {
            return false;
        };
        // Bits that TMA lacks come from the MTC: the next MTC is sent before they change.
        let mask = (1_u32 << (shift + 8).min(CTC_BITS)) - 1;
        let ticks = (u32::from(count) << shift).wrapping_sub(ctc.into()) & mask;
        let tsc = tsc.saturating_add(u64::from(ticks).saturating_mul(by) / of);
        (self.tsc, self.cycles, self.ahead, self.next) = (Some(tsc), 0, None, None);
        self.ctc = Some((ctc.wrapping_add(ticks as u16), tsc));
        true
    }

    /// Ticks for a number of cycles, by the last ratio from a packet.
    fn by_cbr(&self, cycles: u64) -> u64 {
        let ratio = self.cbr.map_or(self.rates.nominal, |cbr| u64::from(cbr[0])).max(1);
        cycles.saturating_mul(self.rates.nominal) / ratio
    }

    /// TSC at the last packet that was read. None: before the first packet that gives a TSC.
    pub fn now(&self) -> Option<u64> {
        let tsc = self.tsc?;
        let passed = match self.ahead {
            Some((ticks, cycles @ 1..)) => {
                let passed = u128::from(self.cycles) * u128::from(ticks) / u128::from(cycles);
                u64::try_from(passed).unwrap_or(u64::MAX)
            }
            _ => self.by_cbr(self.cycles),
        };
        Some(tsc.saturating_add(passed).min(self.next.unwrap_or(u64::MAX)))
    }

    /// The time packets of a PSB+; not before TSC `least`.
    pub fn packets(&self, least: Option<u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(tsc) = self.now().max(least) {
            bytes.push(0x19);
            bytes.extend(&tsc.to_le_bytes()[..7]);
            let (by, of) = self.rates.tsc_ctc;
            if let (Some((ctc, at)), true) = (self.ctc, by > 0) {
                let since = tsc.saturating_sub(at);
                let ticks = since.saturating_mul(of) / by;
                let rest = since.saturating_sub(ticks.saturating_mul(by) / of.max(1)).min(0x1ff);
                let ctc = ctc.wrapping_add(ticks as u16).to_le_bytes();
                bytes.extend([2, 0x73, ctc[0], ctc[1], 0, rest as u8, (rest >> 8) as u8]);
            }
        }
        if let Some(cbr) = self.cbr {
            bytes.extend([2, 0x03, cbr[0], cbr[1]]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The core runs at half the nominal rate, as CBR reports.
    fn clock() -> Clock {
        let mut clock = Clock::new(Rates { tsc_ctc: (84, 1), mtc_shift: Some(3), nominal: 20 });
        clock.take(&[2, 3, 10, 0]);
        clock.take(&tsc(1000));
        clock
    }

    fn tsc(value: u16) -> [u8; 8] {
        let [low, high] = value.to_le_bytes();
        [0x19, low, high, 0, 0, 0, 0, 0]
    }

    /// A CYC packet of up to 31 cycles.
    fn cycles(n: u8) -> [u8; 1] {
        [n << 3 | 3]
    }

    /// Times after each of ten steps of ten cycles, when the next TSC is known.
    fn times(next_tsc: u16) -> Vec<u64> {
        let mut now = clock();
        let mut next = now.clone();
        (0..10).for_each(|_| _ = next.take(&cycles(10)));
        next.take(&tsc(next_tsc));
        now.look_ahead(&next, 100, false);
        let mut at = || {
            now.take(&cycles(10));
            now.now().unwrap()
        };
        (0..10).map(|_| at()).collect()
    }

    #[test]
    fn between_two_tscs_time_is_right_at_both() {
        let by_cbr: Vec<_> = (1..=10).map(|n| 1000 + 20 * n).collect();
        assert_eq!(times(1200), by_cbr);
        // CBR reports whole steps: the core ran 5 % slower, or faster.
        assert_eq!(times(1210), (1..=10).map(|n| 1000 + 21 * n).collect::<Vec<_>>());
        assert_eq!(times(1190), (1..=10).map(|n| 1000 + 19 * n).collect::<Vec<_>>());
        // It slept for a while, at an unknown time: code ran at the core's rate.
        assert_eq!(times(9000), by_cbr);
        // Never after the next TSC.
        assert_eq!(times(1050), [1020, 1040, 1050, 1050, 1050, 1050, 1050, 1050, 1050, 1050]);
    }

    #[test]
    fn another_frequency_counts_from_its_packet_on() {
        let mut clock = clock();
        clock.take(&cycles(10));
        clock.take(&[2, 3, 20, 0]);
        clock.take(&cycles(10));
        assert_eq!(clock.now(), Some(1000 + 20 + 10));
        let (mut next, cycles) = (clock.clone(), clock.cycles());
        assert!(next.take(&tsc(1033)));
        clock.look_ahead(&next, cycles, false);
        assert_eq!(clock.now(), Some(1030));
    }

    #[test]
    fn an_mtc_has_bits_that_tma_has_not() {
        for shift in [3, 8, 9, 12, 15] {
            let mut clock = Clock::new(Rates { tsc_ctc: (2, 1), mtc_shift: Some(shift), nominal: 20 });
            clock.take(&tsc(1000));
            // CTC 0x2fff0; MTCs have 8 bits of it.
            clock.take(&[2, 0x73, 0xf0, 0xff, 0, 0, 0]);
            let mut at = 0x2fff0_u64;
            for _ in 0..300 {
                let next = ((at >> shift) + 1) << shift;
                assert!(clock.take(&[0x59, (next >> shift) as u8]));
                assert_eq!(clock.now(), Some(1000 + (next - 0x2fff0) * 2), "{shift}");
                at = next;
            }
        }
    }

    #[test]
    fn an_mtc_of_an_unknown_rate_tells_nothing() {
        for tsc_ctc in [(0, 0), (0, 1), (1, 0)] {
            let mut clock = Clock::new(Rates { tsc_ctc, mtc_shift: Some(3), nominal: 20 });
            clock.take(&tsc(1000));
            clock.take(&[2, 0x73, 1, 0, 0, 0, 0]);
            assert!(!clock.take(&[0x59, 1]));
            assert_eq!(clock.now(), Some(1000));
        }
    }

    #[test]
    fn a_clock_without_tsc_tells_nothing() {
        let mut clock = Clock::new(Rates { tsc_ctc: (0, 0), mtc_shift: None, nominal: 20 });
        clock.take(&cycles(5));
        clock.take(&[0x59, 1]);
        assert_eq!((clock.now(), clock.packets(None)), (None, vec![]));
    }
}
