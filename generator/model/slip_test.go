package model_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
)

// slipSource is the file in which the mistakes are made.
const slipSource = `version: "1"
package: events
types:
  outcome:
    enum: [completed, failed]
namespaces:
  mini_chat:
    topics:
      turn_finalized:
        version: 2
        doc: is emitted once per turn.
        tenant: tenant_id
        dedupe_key: "{tenant_id}/{turn_id}"
        retention: {delivered: 168h, dead: 720h}
        payload:
          tenant_id: uuid
          turn_id: uuid
          tags: "[]string"
          note: {type: string, max_len: 10, optional: true}
          outcome: outcome
      message_created:
        delivery: log
        payload:
          message_id: uuid
listeners:
  broadcast:
    topics:
      - mini_chat/message_created
    lease: 30s
`

// TestSlips makes the most common mistakes in the middle of a file. Each finding has the line and column of the mistake,
// and says what to do.
func TestSlips(t *testing.T) {
	t.Parallel()
	_, findings := model.Load([]byte(slipSource), "outbox.yaml")
	require.NoError(t, findings.Err())
	for name, test := range map[string]struct {
		right, slip string // of the source
		want        string // the first finding
	}{
		"tab as indentation": {"        tenant: t", "\ttenant: t",
			"12:1: not valid YAML: the indentation holds a tab (indent with spaces) [yaml-syntax]"},
		"tab after spaces": {"          turn_id: u", "        \tturn_id: u",
			"17:9: not valid YAML: the indentation holds a tab (indent with spaces) [yaml-syntax]"},
		"non-breaking space in front": {"          turn_id: u", "        \u00a0\u00a0turn_id: u",
			"17:9: not valid YAML: the indentation holds a non-breaking space (it looks like a space but is another character: indent with plain spaces) [yaml-syntax]"},
		"non-breaking space after a colon": {"turn_id: u", "turn_id:\u00a0u",
			"17:18: not valid YAML: the colon is followed by a non-breaking space (put a plain space after the colon) [yaml-syntax]"},
		"full-width colon": {"turn_id: u", "turn_id：u",
			`17:18: not valid YAML: the colon is not a plain colon (write "key: value") [yaml-syntax]`},
		"template without quotes": {`"{tenant_id}/{turn_id}"`, `{tenant_id}/{turn_id}`,
			"13:21: not valid YAML: text follows the closing } (a template needs quotes) [yaml-syntax]"},
		"template of one field": {`"{tenant_id}/{turn_id}"`, `{tenant_id}`,
			`13:21: dedupe_key: must be text such as "{tenant_id}/{turn_id}", not a mapping (a template needs quotes) [wrong-type]`},
		"template with text in front": {`"{tenant_id}/{turn_id}"`, `turn: {tenant_id}`,
			`13:25: not valid YAML: this line has a second colon (text that holds ": " needs quotes) [yaml-syntax]`},
		"template in double braces": {`"{tenant_id}/{turn_id}"`, `{{tenant_id}}/{{turn_id}}`,
			"13:21: not valid YAML: text follows the closing } (a template needs quotes) [yaml-syntax]"},
		"list type without quotes": {`"[]string"`, `[]string`,
			`18:17: not valid YAML: text follows the closing ] (a type such as "[]string" needs quotes) [yaml-syntax]`},
		"list type in braces": {`type: string,`, `type: []string,`,
			`19:24: not valid YAML: a bracket follows text (inside { } a type such as "[]string" needs quotes) [yaml-syntax]`},
		"map type in braces": {`type: string,`, `type: map[string]int64,`,
			`19:24: not valid YAML: a bracket follows text (inside { } a type such as "[]string" needs quotes) [yaml-syntax]`},
		"optional type in braces": {`type: string,`, `type: string?,`,
			`19:30: not valid YAML: "?" has a special meaning inside brackets (inside { } a type such as "uuid?" needs quotes) [yaml-syntax]`},
		"brace not closed": {"optional: true}", "optional: true",
			"19:17: not valid YAML: the { is not closed (close it with }) [yaml-syntax]"},
		"bracket not closed": {"failed]", "failed",
			"5:11: not valid YAML: the [ is not closed (close it with ]) [yaml-syntax]"},
		"brace closed by a bracket": {"optional: true}", "optional: true]",
			"19:59: not valid YAML: the { is closed by ] (close it with }) [yaml-syntax]"},
		"brace closed twice": {"optional: true}", "optional: true}}",
			"19:60: not valid YAML: the } has nothing to close (remove it) [yaml-syntax]"},
		"brace on a separate line": {"          outcome: outcome", "          outcome: outcome\n        }",
			"21:9: not valid YAML: the } has nothing to close (remove it) [yaml-syntax]"},
		"double quote not closed": {`/{turn_id}"`, `/{turn_id}`,
			`13:21: not valid YAML: the quote is not closed (close it with ") [yaml-syntax]`},
		"single quote not closed": {`is emitted once per turn.`, `'is emitted once per turn.`,
			"11:14: not valid YAML: the quote is not closed (close it with ') [yaml-syntax]"},
		"quote not opened": {`"[]string"`, `[]string"`,
			`18:17: not valid YAML: text follows the closing ] (a type such as "[]string" needs quotes) [yaml-syntax]`},
		"apostrophe in single quotes": {`is emitted once per turn.`, `'is the turn's end.'`,
			"11:27: not valid YAML: text follows the closing ' (inside '...' write a quote as '') [yaml-syntax]"},
		"quotes in double quotes": {`is emitted once per turn.`, `"is the "end" of a turn."`,
			`11:23: not valid YAML: text follows the closing " (inside "..." write a quote as \") [yaml-syntax]`},
		"backslash in double quotes": {`max_len: 10`, `pattern: "^\d+$"`,
			`19:43: not valid YAML: \d is not a valid escape in YAML (use single quotes, or double the \) [yaml-syntax]`},
		"no space after a colon": {"turn_id: uuid", "turn_id:uuid",
			`17:18: not valid YAML: a space is missing after the colon (write "key: value") [yaml-syntax]`},
		"no space after the first colon": {"tenant_id: uuid", "tenant_id:uuid",
			`16:20: not valid YAML: a space is missing after the colon (write "key: value") [yaml-syntax]`},
		"no space after a colon in braces": {"type: string", "type:string",
			`19:18: unknown key "type:string" in field note of topic mini_chat/turn_finalized (a space is missing after the colon) [unknown-key]`},
		"no colon": {"turn_id: uuid", "turn_id uuid",
			`17:11: not valid YAML: the colon of a key is missing (write "key: value") [yaml-syntax]`},
		"no colon after a mapping's key": {"payload:\n          tenant", "payload\n          tenant",
			`15:9: not valid YAML: the colon of a key is missing (write "key: value") [yaml-syntax]`},
		"equals sign": {"turn_id: uuid", "turn_id = uuid",
			`17:18: not valid YAML: the key is followed by "=" instead of ":" (write "key: value") [yaml-syntax]`},
		"indented too deep": {"        tenant: t", "          tenant: t",
			"12:11: not valid YAML: this line is indented deeper than the one above, which already has a value (indent it like the line above, or quote the text if it spans several lines) [yaml-syntax]"},
		"indented too little": {"        tenant: t", "       tenant: t",
			"12:8: not valid YAML: the indentation of this line does not match any line above (indent it like the keys that it belongs to) [yaml-syntax]"},
		"key twice": {"tenant: tenant_id", "tenant: tenant_id\n        version: 2",
			`13:9: duplicate key "version" in topic mini_chat/turn_finalized: the first one is at line 10 [duplicate-key]`},
		"colon in text": {"is emitted once", "is emitted: once",
			`11:24: not valid YAML: this line has a second colon (text that holds ": " needs quotes) [yaml-syntax]`},
		"colon at the end of text": {"is emitted once per turn.", "is emitted:",
			`11:24: not valid YAML: this line has a second colon (text that holds ": " needs quotes) [yaml-syntax]`},
		"at sign": {"is emitted", "@emitted",
			"11:14: not valid YAML: a value cannot start with @ (quote the text) [yaml-syntax]"},
		"percent sign": {"is emitted", "%emitted",
			"11:14: not valid YAML: a value cannot start with % (quote the text) [yaml-syntax]"},
		"backtick": {"is emitted", "`emitted`",
			"11:14: not valid YAML: a value cannot start with ` (quote the text) [yaml-syntax]"},
		"asterisk": {"is emitted once", "*emitted* once",
			"11:14: not valid YAML: a value cannot start with * (quote the text) [yaml-syntax]"},
		"ampersand": {"is emitted once", "&emitted once",
			"11:14: the anchor &emitted is not allowed: repeat the value, or move it into types or defaults [yaml-anchor]"},
		"exclamation mark": {"is emitted once", "!emitted once",
			`11:14: the tag "!emitted" is not allowed: put the value in quotes to make it text [yaml-tag]`},
		"list in place of a mapping": {"          tenant_id: uuid\n          turn_id: uuid\n", "          - tenant_id: uuid\n          - turn_id: uuid\n",
			`18:11: not valid YAML: this key is among the entries of a list (start each entry with "- ", or indent the key like the others) [yaml-syntax]`},
		"list of all fields": {slipSource[strings.Index(slipSource, "          tenant_id: u"):strings.Index(slipSource, "      message_created")], "          - tenant_id: uuid\n          - turn_id: uuid\n",
			`16:11: payload: must be a mapping of names such as {user_id: uuid}, not a list (write "name: value" lines without "- ") [wrong-type]`},
		"mapping in place of a list": {"      - mini_chat/message_created", "      mini_chat/message_created: {}",
			`28:7: topics: must be a list, not a mapping (start each line with "- ") [wrong-type]`},
		"text in place of a list": {"\n      - mini_chat/message_created", " mini_chat/message_created",
			`27:13: topics: must be a list, not the text "mini_chat/message_created" (put it in [ ]) [wrong-type]`},
		"no space after a dash": {"- mini_chat/message_created", "-mini_chat/message_created",
			`28:7: topics: must be a list, not the text "-mini_chat/message_created" (a space is missing after the "-") [wrong-type]`},
		"dash behind a key": {"\n      - mini_chat/message_created", " - mini_chat/message_created",
			`27:13: not valid YAML: a list cannot start on the line of its key (start it on the next line, or write [a, b]; quote text that starts with "- ") [yaml-syntax]`},
		"dash among keys": {"        tenant: t", "        - tenant: t",
			`12:9: not valid YAML: this "- " is among keys (remove the "- ", or put the list under its own key) [yaml-syntax]`},
		"no comma in braces": {"type: string, max", "type: string max",
			`19:31: not valid YAML: a comma is missing before this (put a "," between entries) [yaml-syntax]`},
		"no comma in brackets": {"completed, failed", "completed failed",
			`5:12: enum: "completed failed" of type outcome cannot be turned into the name of a Go constant: put a comma between two values, or name the constant, as in {value: "completed failed", go: CompletedFailed} [enum-bad-value]`},
		"two commas": {"type: string, max", "type: string,, max",
			"19:31: not valid YAML: there is nothing before this comma (remove the comma) [yaml-syntax]"},
		"comma behind a value": {"turn_id: uuid", "turn_id: uuid,",
			`17:20: type: "uuid," of field turn_id of topic mini_chat/turn_finalized is not a valid type: use a name, []T or map[string]T, with a ? at the end if it is optional (remove the ',' at its end) [bad-type]`},
		"comment without a space": {"tenant: tenant_id", "tenant: tenant_id#owner",
			`12:17: tenant: unknown field "tenant_id#owner" in topic mini_chat/turn_finalized (a comment needs a space before "#") [tenant-unknown-field]`},
		"comment of another language": {"        tenant: t", "        // the owner\n        tenant: t",
			`12:9: not valid YAML: this is not a comment (a comment starts with "#") [yaml-syntax]`},
		"smart quotes": {`"{tenant_id}/{turn_id}"`, `“{tenant_id}/{turn_id}”`,
			`13:21: dedupe_key: the template of topic mini_chat/turn_finalized holds the character '“', which is not printable ASCII (use plain quotes, " or ') [template-syntax]`},
		"yes": {"optional: true", "optional: yes",
			`19:55: optional: must be true or false, not the text "yes" (did you mean "true"?) [wrong-type]`},
		"off": {"optional: true", "optional: off",
			`19:55: optional: must be true or false, not the text "off" (did you mean "false"?) [wrong-type]`},
		"version without quotes": {`version: "1"`, `version: 1`,
			`1:10: version: must be "1" in quotes, not the number 1 [wrong-type]`},
		"version in quotes": {`version: 2`, `version: "2"`,
			`10:18: version: must be a whole number, not the text "2" (remove the quotes) [wrong-type]`},
		"mark in front of a type": {"turn_id: uuid", "turn_id: ?uuid",
			`17:20: type: "?uuid" of field turn_id of topic mini_chat/turn_finalized is not a valid type: use a name, []T or map[string]T, with a ? at the end if it is optional (did you mean "uuid?"?) [bad-type]`},
		"number as a name": {"          outcome: outcome", "          404: uuid",
			`20:11: "404" is not a valid field name: use a lower-case letter, then up to 40 of a-z, 0-9 or _ [bad-name]`},
		"true as a name": {"          outcome: outcome", "          true: uuid",
			`20:11: payload: "true" must be quoted to be used as a name [wrong-type]`},
		"byte order mark": {"package: events", "\uFEFFpackage: events",
			"2:1: there is a byte order mark here, which most editors do not show: remove it [yaml-encoding]"},
		"zero-width space": {"tenant: tenant_id", "tenant\u200b: tenant_id",
			`12:9: unknown key "tenant\u200b" in topic mini_chat/turn_finalized (it holds the invisible character U+200B: type the text again) [unknown-key]`},
		"a value below its key": {"        tenant: tenant_id", "        tenant: tenant_id\n          owner: x",
			"13:11: not valid YAML: this line is indented deeper than the one above, which already has a value (indent it like the line above, or quote the text if it spans several lines) [yaml-syntax]"},
		"second document": {"listeners:", "---\nlisteners:",
			"25:1: a second document starts here: a file must hold only one [yaml-document]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, 1, strings.Count(slipSource, test.right), "%q occurs once", test.right)
			source := strings.Replace(slipSource, test.right, test.slip, 1)
			for _, end := range []string{"\n", "\r\n"} {
				_, findings := model.Load([]byte(strings.ReplaceAll(source, "\n", end)), "outbox.yaml")
				require.NotEmpty(t, findings)
				require.Equal(t, test.want, strings.TrimPrefix(findings[0].String(), "outbox.yaml:"), "all: %v", findings)
			}
		})
	}
}
