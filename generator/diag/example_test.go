package diag_test

import (
	"os"

	"github.com/outboxgen/outboxgen/generator/diag"
)

func ExamplePrint() {
	findings := diag.List{{
		Pos:      diag.Pos{File: "outbox.yaml", Line: 9, Column: 21},
		Rule:     diag.DedupeUnknownField,
		Message:  `dedupe_key: unknown field "turn" in topic mini_chat/turn_finalized (did you mean "turn_id"?)`,
		Severity: diag.Error,
	}}
	if err := diag.Print(os.Stdout, diag.Text, findings); err != nil {
		panic(err)
	}
	// Output:
	// outbox.yaml:9:21: dedupe_key: unknown field "turn" in topic mini_chat/turn_finalized (did you mean "turn_id"?) [dedupe-unknown-field]
}
