//! Handcrafted plugins that no compiler would produce.

/// The body of a `score` function that scores no row.
pub const NO_SCORES: &str =
    "(i32.store (i32.const 260) (i32.const 32768)) (i32.store (i32.const 264) (local.get 7)) (i32.const 256)";

/// Returns a reward as a core module in text format, with additional `fields`, and with `score` as the body of its function. Its
/// description, without settings, is at address 0, its schema at 65536.
///
/// # Panics
/// If the text is not WebAssembly.
#[must_use]
pub fn core_reward(fields: &str, score: &str) -> Vec<u8> {
    core_reward_with(fields, score, "{}")
}

/// Returns the module of [`core_reward`] with a schema.
///
/// # Panics
/// If the text is not WebAssembly.
#[must_use]
pub fn core_reward_with(fields: &str, score: &str, schema: &str) -> Vec<u8> {
    let length: String = (schema.len() as u32).to_le_bytes().iter().map(|byte| format!("\\{byte:02x}")).collect();
    let schema: String = schema.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
            {fields}
            (memory (export "memory") 16)
            ;; name, version and description empty; schema at 65536; needs 0; stateless 1.
            (data (i32.const 24) "\00\00\01\00{length}")
            (data (i32.const 34) "\01")
            (data (i32.const 65536) "{schema}")
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
            (func (export "rlhost:plugin/plugin@0.1.0#describe") (result i32) (i32.const 0))
            (func (export "rlhost:plugin/plugin@0.1.0#configure") (param i32 i32) (result i32) (i32.const 128))
            (func (export "rlhost:plugin/reward@0.1.0#score")
                (param i64 i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)
                {score}))"#
    );
    wat::parse_str(text).unwrap()
}

/// Returns a few kilobytes of components, each of which instantiates the one before ten times.
///
/// # Panics
/// Never.
#[must_use]
pub fn multiplied() -> Vec<u8> {
    let level = |i: usize| {
        let before = i - 1;
        format!("(component (alias outer 1 {before} (component $a)) {})", "(instance (instantiate $a))".repeat(10))
    };
    let levels: String = (1..13).map(level).collect();
    wat::parse_str(format!("(component (component) {levels} (instance (instantiate 12)))")).expect("it is WebAssembly")
}

/// Returns a component with types nested a hundred thousand deep.
#[must_use]
pub fn deep() -> Vec<u8> {
    // Each level is an instance type with one declaration, which is a type; the innermost has none.
    let mut ty = [0x42, 1, 1].repeat(100_000);
    ty.extend([0x42, 0]);
    let mut section = vec![1];
    section.extend(ty);
    [b"\0asm\x0d\0\x01\0".to_vec(), vec![7], leb128(section.len()), section].concat()
}

/// Returns a component with `components` instances of another, which has `instances` instances of a core module with these fields.
///
/// # Panics
/// If the fields are not WebAssembly.
#[must_use]
pub fn instantiated(fields: &str, instances: usize, components: usize) -> Vec<u8> {
    let inner = format!("(core module $m {fields}) {}", "(core instance (instantiate $m))".repeat(instances));
    let outer = "(instance (instantiate $c))".repeat(components);
    wat::parse_str(format!("(component (component $c {inner}) {outer})")).unwrap()
}

/// Returns fields of a core module whose start function refers to this many functions. An instance keeps a reference to each.
#[must_use]
pub fn references(functions: usize) -> String {
    let names: String = (0..functions).map(|i| format!(" {i}")).collect();
    let refer: String = (0..functions).map(|i| format!("(drop (ref.func {i}))")).collect();
    format!("{}(elem declare func{names}) (func $start {refer}) (start $start)", "(func)".repeat(functions))
}

/// Returns a few kilobytes whose instances take gigabytes: nested components with many instances of a module that refers to its functions.
#[must_use]
pub fn bomb() -> Vec<u8> {
    instantiated(&references(20_000), 990, 9)
}

/// Returns the body of a `score` function that runs `first`, and then scores each row with the number that `value` leaves on the stack.
#[must_use]
pub fn score_of(first: &str, value: &str) -> String {
    format!(
        "(local $row i32) (local $score f32)
        {first}
        (local.set $score {value})
        (block $done (loop $next
            (br_if $done (i32.ge_u (local.get $row) (local.get 7)))
            (i32.store (i32.add (i32.const 32768) (i32.mul (local.get $row) (i32.const 8))) (i32.const 1))
            (f32.store (i32.add (i32.const 32772) (i32.mul (local.get $row) (i32.const 8))) (local.get $score))
            (local.set $row (i32.add (local.get $row) (i32.const 1)))
            (br $next)))
        {NO_SCORES}"
    )
}

fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(0x80 | (number & 0x7f) as u8);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Returns a reward that takes minutes to compile: a hundred functions of ten thousand blocks each.
///
/// # Panics
/// Never.
#[must_use]
pub fn long() -> Vec<u8> {
    const FUNCTIONS: usize = 100;
    // (if (local.get 0) (then (local.set 0 (i32.mul (local.get 0) (local.get 1)))))
    const BLOCK: [u8; 12] = [0x20, 0, 0x04, 0x40, 0x20, 0, 0x20, 1, 0x6c, 0x21, 0, 0x0b];
    let body = [&[0][..], &BLOCK.repeat(10_000), &[0x0b]].concat();
    let bodies = [leb128(body.len()), body].concat().repeat(FUNCTIONS);
    // As text, they would be 80 MB. So they take the place of as many functions without instructions.
    let empty = core_reward(&"(func (param i32 i32))".repeat(FUNCTIONS), "(unreachable)");
    let code = code_section(&empty);
    let (count, rest) = empty[code.clone()].split_at(1);
    let content = [count, &bodies, &rest[3 * FUNCTIONS..]].concat();
    let header = code.start - leb128(code.len()).len();
    [&empty[..header], &leb128(content.len()), &content, &empty[code.end..]].concat()
}

/// Returns where the content of a core module's code section is.
fn code_section(module: &[u8]) -> std::ops::Range<usize> {
    const CODE: u8 = 10;
    let mut at = 8;
    loop {
        let id = module[at];
        let (mut size, mut digits) = (0, 0);
        loop {
            let byte = module[at + 1 + digits];
            size |= usize::from(byte & 0x7f) << (7 * digits);
            digits += 1;
            if byte < 0x80 {
                break;
            }
        }
        let start = at + 1 + digits;
        if id == CODE {
            return start..start + size;
        }
        at = start + size;
    }
}
