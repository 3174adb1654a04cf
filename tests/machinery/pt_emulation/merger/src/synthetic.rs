// SPDX-License-Identifier: GPL-2.0-only
//! A synthetic side-band: one process with known code, on CPUs that run nothing else.

use crate::file::{Event, File};
use crate::layout::{attr, feature, put_u32, put_u64, record, sample, string};
use crate::side_band::SampleId;

/// A file mapped for execution.
pub struct Code {
    pub address: u64,
    pub size: u64,
    pub file: String,
}

const PID: u32 = 1000;
const ATTR_SIZE: usize = 128;
const PROT_READ_EXEC: u32 = 5;
const MAP_PRIVATE: u32 = 2;

fn dummy(name: &str, flags: u64, ids: Vec<u64>) -> Event {
    let sample_type = sample::IP | sample::TID | sample::TIME | sample::CPU | sample::IDENTIFIER;
    let mut bytes = vec![0; ATTR_SIZE];
    put_u32(&mut bytes, attr::TYPE, attr::TYPE_SOFTWARE);
    put_u32(&mut bytes, attr::SIZE, ATTR_SIZE as u32);
    put_u64(&mut bytes, attr::CONFIG, attr::CONFIG_DUMMY);
    put_u64(&mut bytes, attr::SAMPLE_TYPE, sample_type);
    put_u64(&mut bytes, attr::FLAGS, flags | attr::SAMPLE_ID_ALL | attr::DISABLED);
    Event { attr: bytes, ids, name: name.to_owned() }
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// What `perf record -e dummy:u -e dummy:k` would write. perf's clock is the TSC.
pub fn side_band(n_cpus: u32, code: &[Code]) -> File {
    let ids = |first: u64| (0..u64::from(n_cpus)).map(|cpu| first + cpu).collect();
    let carrier = dummy("dummy:k", attr::EXCLUDE_USER, ids(1));
    let tracking = dummy("dummy:u", attr::MMAP | attr::COMM, ids(100));
    let id = SampleId::new(carrier.sample_type());
    let end = |cpu: u32| id.bytes(PID, PID, 0, cpu, 100);
    let task = || {
        let mut body = PID.to_le_bytes().to_vec();
        body.extend(PID.to_le_bytes());
        body
    };

    let mut data = crate::layout::record(record::TIME_CONV, &words(&[0, 1, 0]));
    let mut body = task();
    body.extend(b"code\0\0\0\0");
    body.extend(end(0));
    data.extend(crate::layout::record(record::COMM, &body));
    for code in code {
        let mut body = task();
        body.extend(words(&[code.address, code.size, 0, 0, 0, 0]));
        body.extend(PROT_READ_EXEC.to_le_bytes());
        body.extend(MAP_PRIVATE.to_le_bytes());
        body.extend(code.file.as_bytes());
        body.resize(body.len() + 8 - code.file.len() % 8, 0);
        body.extend(end(0));
        data.extend(crate::layout::record(record::MMAP2, &body));
    }
    for cpu in 0..n_cpus {
        let mut body = task();
        body.extend(end(cpu));
        data.extend(crate::layout::record(record::ITRACE_START, &body));
    }

    let mut file = File { events: vec![carrier, tracking], data, ..File::default() };
    let cpus = [n_cpus.to_le_bytes(), n_cpus.to_le_bytes()].concat();
    file.features.insert(feature::HOSTNAME, string("synthetic"));
    file.features.insert(feature::OSRELEASE, string("6.1.0"));
    file.features.insert(feature::ARCH, string("x86_64"));
    file.features.insert(feature::NRCPUS, cpus);
    file.features.insert(feature::CPUID, string("GenuineIntel,6,6,3"));
    file
}
