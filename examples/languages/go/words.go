// Prefers completions of a target number of words: -|words - target|, none without a word.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const schema = `{"type": "object", "additionalProperties": false, "properties": {"target": {
	"description": "The number of words that scores highest.", "type": "integer", "minimum": 0, "default": 20}}}`

const defaultTarget = 20

var target = defaultTarget

func describe() info {
	return info{
		name:         bytesOf("words-go"),
		version:      bytesOf("0.1.0"),
		description:  bytesOf("Prefers completions of a target number of words"),
		configSchema: bytesOf(schema),
		needs:        listOf([]list[byte]{bytesOf("completion_text"), bytesOf("dataset_columns")}),
		stateless:    true,
	}
}

func configure(config []byte) error {
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(config, &settings); err != nil {
		return err
	}
	if settings == nil {
		return errors.New("expected an object")
	}
	given := defaultTarget
	for key, value := range settings {
		if key != "target" {
			return fmt.Errorf("unknown key %q; there is target", key)
		}
		var err error
		if given, err = strconv.Atoi(string(value)); err != nil || given < 0 {
			return errors.New("target must be an integer from 0")
		}
	}
	target = given
	return nil
}

// unicode.IsSpace knows spaces beyond ASCII too.
func isSpace(r rune) bool { return strings.ContainsRune(" \t\n\r\v\f", r) }

func score(b batch, row int) (reward float32, some bool) {
	words := len(strings.FieldsFunc(b.completions[row], isSpace))
	want := target
	if column, ok := b.columns["target"]; ok {
		if own, err := strconv.Atoi(column[b.promptOf[row]]); err == nil {
			want = own
		}
	}
	return float32(min(words-want, want-words)), words > 0
}
