package main

// The contract of plugin-sdk/wit/ as the component model's canonical ABI has it. Addresses and
// lengths are uint32 here: a Go pointer takes eight bytes on wasm, and one of the ABI four.

import "unsafe"

// Memory of the call in hand: its arguments and its answer, which Go must not collect before the
// host has read it.
var kept [][]uint64

func alloc(size uint32) unsafe.Pointer {
	block := make([]uint64, size/8+1)
	kept = append(kept, block)
	return unsafe.Pointer(&block[0])
}

//go:wasmexport cabi_realloc
func realloc(old unsafe.Pointer, oldSize, align, size uint32) unsafe.Pointer {
	block := alloc(size)
	copy(unsafe.Slice((*byte)(block), size), unsafe.Slice((*byte)(old), oldSize))
	return block
}

// list is the contract's list<T>, and with bytes its string.
type list[T any] struct{ address, length uint32 }

func (l list[T]) slice() []T {
	return unsafe.Slice((*T)(unsafe.Pointer(uintptr(l.address))), l.length)
}

func text(l list[byte]) string { return string(l.slice()) }

func listOf[T any](items []T) list[T] {
	var item T
	block := alloc(uint32(len(items)) * uint32(unsafe.Sizeof(item)))
	copy(unsafe.Slice((*T)(block), len(items)), items)
	return list[T]{uint32(uintptr(block)), uint32(len(items))}
}

func bytesOf(s string) list[byte] { return listOf([]byte(s)) }

type info struct {
	name, version, description, configSchema list[byte]
	needs                                    list[list[byte]]
	stateless                                bool
}

const errorConfig = 0

// configured is the contract's result<_, error>.
type configured struct {
	failed bool
	error  struct {
		kind uint8
		text list[byte]
	}
}

type column struct {
	name   list[byte]
	values list[list[byte]]
}

// batch is what this plugin reads of the contract's batch.
type batch struct {
	columns     map[string][]string
	promptOf    []uint32
	completions []string
}

type optionalFloat struct {
	some  bool
	value float32
}

// scored is the contract's result<scores, error>, of which this plugin only gives scores.
type scored struct {
	failed  bool
	rewards list[optionalFloat]
	metrics list[struct{}]
}

// Where the answers lie; the host gets their address.
var (
	describeAnswer  info
	configureAnswer configured
	scoreAnswer     scored
)

//go:wasmexport rlhost:plugin/plugin@1.0.0#describe
func exportDescribe() unsafe.Pointer {
	describeAnswer = describe()
	return unsafe.Pointer(&describeAnswer)
}

//go:wasmexport rlhost:plugin/plugin@1.0.0#configure
func exportConfigure(config, length uint32) unsafe.Pointer {
	configureAnswer = configured{}
	if err := configure(list[byte]{config, length}.slice()); err != nil {
		configureAnswer.failed = true
		configureAnswer.error.kind = errorConfig
		configureAnswer.error.text = bytesOf(err.Error())
	}
	return unsafe.Pointer(&configureAnswer)
}

//go:wasmexport rlhost:plugin/reward@1.0.0#score
func exportScore(step, seed uint64, prompts, promptsLength, columns, columnsLength, promptOf, rows, completions, completionsLength,
	finished, finishedLength, offsets, offsetsLength, tokenIds, tokenIdsLength uint32) unsafe.Pointer {
	b := batch{
		columns:     make(map[string][]string),
		promptOf:    list[uint32]{promptOf, rows}.slice(),
		completions: texts(list[list[byte]]{completions, completionsLength}),
	}
	for _, c := range (list[column]{columns, columnsLength}).slice() {
		b.columns[text(c.name)] = texts(c.values)
	}
	rewards := make([]optionalFloat, rows)
	for row := range rewards {
		rewards[row].value, rewards[row].some = score(b, row)
	}
	scoreAnswer = scored{rewards: listOf(rewards)}
	return unsafe.Pointer(&scoreAnswer)
}

func texts(l list[list[byte]]) []string {
	out := make([]string, l.length)
	for i, t := range l.slice() {
		out[i] = text(t)
	}
	return out
}

// The host calls these when it has read an answer.

//go:wasmexport cabi_post_rlhost:plugin/plugin@1.0.0#describe
func afterDescribe(unsafe.Pointer) { kept = nil }

//go:wasmexport cabi_post_rlhost:plugin/plugin@1.0.0#configure
func afterConfigure(unsafe.Pointer) { kept = nil }

//go:wasmexport cabi_post_rlhost:plugin/reward@1.0.0#score
func afterScore(unsafe.Pointer) { kept = nil }

func main() {}
