//! Ranks that share no network but one: two network namespaces of this machine, with a cable between them.

use rlhost_tests::mpi::{arguments, possible, same_figures, same_weights};
use rlhost_tests::{CommandOutcome, TestFolder, tiny};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The addresses of both, and their network.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const NETWORK: &str = "10.77.0.0/24";

/// The device at each end of the cable.
const DEVICE: &str = "veth0";

/// Two network namespaces with a cable between them, for as long as this is there.
struct Namespaces([String; 2]);

/// Runs `ip` with these words.
fn ip(words: &str) -> Result<String, String> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|e| format!("there is no ip (iproute2): {e}"))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(said(&output.stdout)) } else { Err(format!("ip {words}: {}", said(&output.stderr))) }
}

impl Namespaces {
    /// Why they can't be made, if they can't: `ip` is missing, or the right to use it.
    fn new() -> Result<Self, String> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        // From here on dropping removes what there is of them.
        let this = Self(["a", "b"].map(|end| format!("rlhost-{process}-{number}-{end}")));
        let [a, b] = &this.0;
        for name in &this.0 {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        ip(&format!("link add {DEVICE} netns {a} type veth peer name {DEVICE} netns {b}"))?;
        for (name, address) in this.0.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} addr add {address}/24 dev {DEVICE}"))?;
            ip(&format!("-n {name} link set {DEVICE} up"))?;
        }
        Ok(this)
    }

    /// Bytes that went into the cable at the first end.
    fn sent(&self) -> u64 {
        let name = &self.0[0];
        let count = ip(&format!("netns exec {name} cat /sys/class/net/{DEVICE}/statistics/tx_bytes"));
        count.unwrap().parse().unwrap()
    }

    /// Runs the binary as two ranks, one in each namespace, that have nothing in common but the cable.
    fn run(&self, place: &TestFolder, arguments: &[&str]) -> CommandOutcome {
        let [a, b] = &self.0;
        // mpirun asks this to run a command on a host, as it would ssh.
        let [here, there] = ADDRESSES;
        let agent = format!("#!/bin/sh\n[ \"$1\" = {there} ] || exit 1\nshift\nexec ip netns exec {b} sh -c \"$*\"\n");
        place.write("agent", agent);
        std::fs::set_permissions(place.path("agent"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let ranks = place.ranks(2, arguments);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", a]).arg(ranks.get_program());
        command.args(["--host", &format!("{here},{there}"), "--mca", "plm_rsh_agent"]).arg(place.path("agent"));
        command.args(["--mca", "btl", "tcp,self", "--mca", "pml", "ob1"]);
        command.args(["--mca", "btl_tcp_if_include", NETWORK, "--mca", "oob_tcp_if_include", NETWORK]);
        command.args(ranks.get_args()).current_dir(ranks.get_current_dir().unwrap());
        for (name, value) in ranks.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        CommandOutcome::new(command.output().unwrap())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            // One that was never made is none too many.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Two namespaces, where there may be; says why not.
fn namespaces() -> Option<Namespaces> {
    if !possible() {
        return None;
    }
    Namespaces::new().inspect_err(|reason| println!("skipped: no network namespaces: {reason}")).ok()
}

#[test]
fn ranks_in_two_network_namespaces_train_as_one_process() {
    let Some(namespaces) = namespaces() else { return };
    let place = TestFolder::with_answers();
    let steps = ["--max-steps", "3", "--num-generations", "2", "--beta", "0.1"];
    for (algorithm, online, more) in [("grpo", true, &steps[..]), ("dpo", false, &steps[..2])] {
        let common = ["--model", tiny(), "--logging-steps", "1"];
        let all = |size, run| {
            [&arguments(algorithm, online, more)[..], &common, &["--per-device-train-batch-size", size, "--output-dir", run]]
                .concat()
        };
        let (alone, apart) = (format!("{algorithm}-alone"), format!("{algorithm}-apart"));
        place.run(&all("8", &alone)).succeeded();
        namespaces.run(&place, &all("4", &apart)).succeeded();
        same_figures(&place, &apart, &alone);
        same_weights(&place, &apart, &alone, 3);
    }
}

#[test]
fn gradients_in_bf16_take_half_the_bytes_and_are_near() {
    let Some(namespaces) = namespaces() else { return };
    let place = TestFolder::with_answers();
    let run = |dtype: &str| {
        let more = ["--model", tiny(), "--logging-steps", "1", "--max-steps", "8", "--per-device-train-batch-size", "4"];
        let before = namespaces.sent();
        let all = [&arguments("dpo", false, &more)[..], &["--reduce-dtype", dtype, "--output-dir", dtype]].concat();
        namespaces.run(&place, &all).succeeded();
        namespaces.sent() - before
    };
    let (whole, half) = (run("float32"), run("bfloat16"));
    let weights: usize = place.tensors("float32/checkpoint-8/model.safetensors").values().map(Vec::len).sum();
    // Of two ranks each sends all of its gradient once; and what else is said is little.
    let gradients = 8 * weights as u64;
    assert!((gradients..gradients * 5 / 4).contains(&whole), "{whole} bytes for gradients of {gradients}");
    assert!((gradients / 2..gradients * 3 / 4).contains(&half), "{half} bytes for gradients of {gradients} in f32");
    let mut same = true;
    for name in ["loss", "grad_norm"] {
        for (got, want) in place.figure("bfloat16", name).into_iter().zip(place.figure("float32", name)) {
            // A number is off by one part in 256 at most when it is sent, and again when the sum comes back.
            assert!((got - want).abs() <= want.abs() / 64.0, "{name} is {got} and not {want}");
            same &= got == want;
        }
    }
    assert!(!same, "nothing was rounded");
}
