// SPDX-License-Identifier: GPL-2.0-only
//! The options of an Intel PT recording, and what can go wrong in one.

use std::ops::Range;

use clap::Args;
use serde::Serialize;

use crate::packet::{LONG_TNT, SHORT_TNT};

/// TSC ticks in which something is lost: [from, to).
pub type Window = Range<u64>;

#[derive(Args, Clone, Debug, Serialize)]
pub struct Options {
    /// No cycle counts
    #[arg(long = "no-cyc", action = clap::ArgAction::SetFalse)]
    pub cyc: bool,
    /// Least cycles between two CYC packets: 0 for any, n for 2^(n-1)
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub cyc_thresh: u8,
    /// MTC packets
    #[arg(long)]
    pub mtc: bool,
    /// An MTC packet each 2^N ticks of the core crystal clock
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub mtc_period: u8,
    /// Ticks of TSC per tick of the core crystal clock, numerator (CPUID leaf 15H)
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub tsc_ctc_n: u32,
    /// ... and denominator
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1))]
    pub tsc_ctc_d: u32,
    /// Compress returns to where the call came from
    #[arg(long = "retcomp", action = clap::ArgAction::SetFalse)]
    pub noretcomp: bool,
    /// Bytes between PSBs: 2048 << N
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub psb_period: u8,
    /// Bytes between PSBs, where tests need less than hardware does
    #[arg(long, value_parser = clap::value_parser!(u32).range(64..))]
    pub psb_bytes: Option<u32>,
    /// Most branches in a TNT packet: up to 6 short, up to 47 long
    #[arg(long, default_value_t = SHORT_TNT, value_parser = clap::value_parser!(u32).range(1..=i64::from(LONG_TNT)))]
    pub tnt_bits: u32,
    /// Power events around HLT
    #[arg(long)]
    pub pwr_evt: bool,
    /// Only user code
    #[arg(long, conflicts_with = "kernel_only")]
    pub user_only: bool,
    /// Only kernel code
    #[arg(long)]
    pub kernel_only: bool,
    /// Only code at these addresses (BEGIN-END in hex, END exclusive); may be repeated
    #[arg(long, value_parser = range)]
    pub filter: Vec<Window>,
    /// Stop for good when code at these addresses runs
    #[arg(long, value_parser = range)]
    pub tracestop: Vec<Window>,
    /// Trace in these ticks of TSC only (BEGIN-END in decimal)
    #[arg(long, value_parser = window)]
    pub only: Option<Window>,
    /// Internal buffer overflow: packets of these ticks of TSC (BEGIN-END in decimal) are lost
    #[arg(long, value_parser = window)]
    pub overflow: Vec<Window>,
    /// AUX buffer full: tracing is off in these ticks, and the chunk before is marked truncated
    #[arg(long, value_parser = window)]
    pub truncate: Vec<Window>,
    /// Tracing is off in these ticks, as where the traced thread does not run
    #[arg(long, value_parser = window)]
    pub off: Vec<Window>,
    /// Overwrite mode: only the last N bytes are kept
    #[arg(long)]
    pub snapshot: Option<usize>,
    /// Bytes of AUX data between two wake-ups of perf
    #[arg(long, default_value_t = 1 << 16)]
    pub chunk: usize,
}

/// The ratio of core to bus, and the highest non-turbo ratio: both are equal, so that a cycle is a tick.
pub const CBR: u8 = 10;

impl Options {
    /// `perf_event_attr.config` that requests these options from the kernel's driver.
    pub fn config(&self) -> u64 {
        let bit = |set: bool, n: u32| u64::from(set) << n;
        bit(true, 0)
            | bit(self.cyc, 1)
            | bit(self.pwr_evt, 4)
            | bit(self.mtc, 9)
            | bit(true, 10)
            | bit(self.noretcomp, 11)
            | bit(true, 13)
            | u64::from(self.mtc_period) << 14
            | u64::from(self.cyc_thresh) << 19
            | u64::from(self.psb_period) << 24
    }

    pub fn psb_every(&self) -> usize {
        self.psb_bytes.map_or(2048 << self.psb_period, |n| n as usize)
    }

    pub fn min_cycles(&self) -> u64 {
        match self.cyc_thresh {
            0 => 1,
            n => 1 << (n - 1),
        }
    }

    /// Ticks of the core crystal clock at a time, and TSC ticks since the last of them.
    pub fn ctc(&self, tsc: u64) -> (u64, u64) {
        let n = u64::from(self.tsc_ctc_n);
        (tsc / n, tsc % n)
    }

    /// Whether code at `ip` is traced.
    pub fn traces(&self, ip: u64) -> bool {
        let level = if pt_events::is_kernel(ip) { !self.user_only } else { !self.kernel_only };
        level && (self.filter.is_empty() || self.filter.iter().any(|range| range.contains(&ip)))
    }

    /// Whether the privilege level at `ip` is traced.
    pub fn traces_level(&self, ip: u64) -> bool {
        if pt_events::is_kernel(ip) {
            !self.user_only
        } else {
            !self.kernel_only
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        <Line as clap::Parser>::parse_from(["pt-encode"]).options
    }
}

fn parse(text: &str, radix: u32) -> Result<Window, String> {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), radix).ok();
    let ends = text.split_once('-').and_then(|(from, to)| Some(number(from)?..number(to)?));
    ends.filter(|ends| !ends.is_empty()).ok_or_else(|| "BEGIN-END, the end above the beginning".to_owned())
}

fn range(text: &str) -> Result<Window, String> {
    parse(text, 16)
}

fn window(text: &str) -> Result<Window, String> {
    parse(text, 10)
}
