// SPDX-License-Identifier: GPL-2.0-only
//! What one CPU did, branch by branch: the intermediate form between the observer's log and the packets.
//!
//! The walker makes events from a log, the encoder turns them into packets, and the gate compares them with a decoder's
//! output for the packets. Events do not depend on QEMU or on packets.

/// One thing that one CPU did. Events of a CPU are in the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Guest TSC when the instruction had retired, or when the asynchronous event was taken.
    pub tsc: u64,
    pub kind: Kind,
}

/// Addresses are linear addresses of the guest; those of the kernel's half have bit 63 set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Observation begins before the instruction at `ip`.
    Enable {
        ip: u64,
        cr3: u64,
    },
    /// Observation ends before the instruction at `ip`.
    Disable {
        ip: u64,
    },
    /// Conditional branch at `from`; `to` is the next instruction executed, taken or not.
    Cond {
        from: u64,
        to: u64,
        taken: bool,
    },
    /// Direct unconditional jump.
    Jump {
        from: u64,
        to: u64,
    },
    /// Direct call; `next` is the address it pushed.
    Call {
        from: u64,
        to: u64,
        next: u64,
    },
    IndirectJump {
        from: u64,
        to: u64,
    },
    IndirectCall {
        from: u64,
        to: u64,
        next: u64,
    },
    /// Near return.
    Ret {
        from: u64,
        to: u64,
    },
    /// Far transfer that an instruction made: syscall, sysret, iret, int n, int3.
    Far {
        from: u64,
        to: u64,
    },
    /// Interrupt or exception; `from` is the address saved in its frame.
    Async {
        from: u64,
        to: u64,
        vector: u8,
    },
    /// CR3 was written with a value that differs from its last one.
    Cr3 {
        value: u64,
    },
    /// HLT: from here to the `Wake`, no instruction retires.
    Halt {
        ip: u64,
    },
    Wake,
    /// Another CPU has its turn: until `Resume`, time passes and no instruction of this CPU retires.
    Pause,
    Resume,
    /// RDTSC returned `value`. For checks: `tsc` of this event must agree.
    Tsc {
        value: u64,
    },
    /// The traced program executed a mark (`nop dword [rax + MARK + id]`).
    Mark {
        id: u16,
        rdi: u64,
        rsi: u64,
    },
    /// Execution reached a watched address; the registers at that point.
    Watch {
        ip: u64,
        rdi: u64,
        rsi: u64,
        rdx: u64,
    },
}

/// What is seen if observation is on only in `ticks`: from the first branch in them to the last.
pub fn only(events: &[Event], ticks: &std::ops::Range<u64>) -> Vec<Event> {
    let mut cr3 = 0;
    let mut seen = Vec::new();
    let mut end = None;
    for &event in events {
        if let Kind::Enable { cr3: value, .. } | Kind::Cr3 { value } = event.kind {
            cr3 = value;
        }
        if event.tsc >= ticks.end {
            break;
        }
        let branch = event.kind.ends();
        if seen.is_empty() {
            // Tracing begins at the target of the first branch.
            if let Some((_, ip)) = branch.filter(|_| event.tsc >= ticks.start) {
                seen.push(Event { tsc: event.tsc, kind: Kind::Enable { ip, cr3 } });
            }
            continue;
        }
        seen.push(event);
        end = branch.map(|(_, ip)| (seen.len(), ip, event.tsc)).or(end);
    }
    if let Some((n, ip, tsc)) = end {
        seen.truncate(n);
        if !matches!(seen[n - 1].kind, Kind::Disable { .. }) {
            seen.push(Event { tsc, kind: Kind::Disable { ip } });
        }
    }
    seen
}

/// Whether an address belongs to the kernel.
pub const fn is_kernel(ip: u64) -> bool {
    ip >> 63 != 0
}

impl Kind {
    /// The name of an event in reports and listings.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Enable { .. } => "enable",
            Kind::Disable { .. } => "disable",
            Kind::Cond { .. } => "cond",
            Kind::Jump { .. } => "jump",
            Kind::Call { .. } => "call",
            Kind::IndirectJump { .. } => "indirect jump",
            Kind::IndirectCall { .. } => "indirect call",
            Kind::Ret { .. } => "ret",
            Kind::Far { .. } => "far",
            Kind::Async { .. } => "async",
            Kind::Cr3 { .. } => "cr3",
            Kind::Halt { .. } => "halt",
            Kind::Wake => "wake",
            Kind::Pause => "pause",
            Kind::Resume => "resume",
            Kind::Tsc { .. } => "tsc",
            Kind::Mark { .. } => "mark",
            Kind::Watch { .. } => "watch",
        }
    }

    /// Source and target of a branch, interrupt or exception. None: the event is something else.
    pub fn ends(&self) -> Option<(u64, u64)> {
        match *self {
            Kind::Cond { from, to, .. }
            | Kind::Jump { from, to }
            | Kind::Call { from, to, .. }
            | Kind::IndirectJump { from, to }
            | Kind::IndirectCall { from, to, .. }
            | Kind::Ret { from, to }
            | Kind::Far { from, to }
            | Kind::Async { from, to, .. } => Some((from, to)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observation_can_be_on_for_a_while_only() {
        let ret = |tsc, to| Event { tsc, kind: Kind::Ret { from: 1, to } };
        let events = [
            Event { tsc: 0, kind: Kind::Enable { ip: 9, cr3: 0x1000 } },
            ret(5, 0x10),
            Event { tsc: 6, kind: Kind::Cr3 { value: 0x2000 } },
            ret(10, 0x20),
            ret(12, 0x30),
            Event { tsc: 13, kind: Kind::Halt { ip: 3 } }, // after the last branch
            ret(20, 0x40),
        ];
        let expected = [
            Event { tsc: 10, kind: Kind::Enable { ip: 0x20, cr3: 0x2000 } },
            ret(12, 0x30),
            Event { tsc: 12, kind: Kind::Disable { ip: 0x30 } },
        ];
        assert_eq!(only(&events, &(7..20)), expected);
    }
}
