package browsertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/generator/model"
	alltypes "github.com/outboxgen/outboxgen/generator/testdata/all-types/want"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/tool/describe"
	"github.com/outboxgen/outboxgen/outbox"
)

func anybody(*http.Request) error { return nil }

func anyTopic(*http.Request, string) error { return nil }

// topicForms has the forms of a topic with a field of each type, of one without a schema, of one with sealed fields, and of one
// whose schema is hostile.
func topicForms(t testing.TB) []dashboard.EnqueueTopic {
	t.Helper()
	evil, err := json.Marshal(map[string]any{"properties": map[string]any{
		script: map[string]any{"type": "string", "description": lines}, imageText: map[string]any{"type": "string", "enum": []string{script, imageText, longText}},
		longText[:200]: map[string]any{"type": "array", "description": longText},
	}})
	require.NoError(t, err)
	return []dashboard.EnqueueTopic{
		dashboard.TopicForm(alltypes.RequiredTopic.Untyped(), schemaOf(t, "../../generator/testdata/all-types/outbox.yaml", "catalog", "required")),
		dashboard.TopicForm(alltypes.OptionalTopic.Untyped(), nil),
		{Name: "catalog/sealed", Sealed: true, Message: func(json.RawMessage) (m outbox.Message, err error) { return m, nil }},
		{Name: "catalog/hostile", Schema: evil, Message: func(json.RawMessage) (m outbox.Message, err error) { return m, errors.New(lines) }},
	}
}

// schemaOf returns the JSON Schema of the payload of a topic, as `outboxgen dashboard --allow-enqueue` makes it.
func schemaOf(t testing.TB, file, namespace, topic string) json.RawMessage {
	t.Helper()
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	m, found := model.Load(source, file)
	require.Empty(t, found)
	for _, n := range m.Namespaces {
		for _, of := range n.Topics {
			if n.Name == namespace && of.Name == topic {
				schema, err := describe.JSONSchema(describe.KindOf(of), "")
				require.NoError(t, err)
				return schema
			}
		}
	}
	require.FailNow(t, "no such topic", "%s/%s in %s", namespace, topic, file)
	return nil
}

// typed has a value for each field of catalog/required, in the order of its form, as somebody types it, and what it is in JSON.
var typed = []struct{ field, text, want string }{
	{"string_value", `</script> "quoted" & plain`, `"</script> \"quoted\" & plain"`},
	{"bool_value", "true", "true"},
	{"int32_value", "-5", "-5"},
	{"int64_value", "9007199254740993", "9007199254740993"},
	{"float64_value", "1.5", "1.5"},
	{"uuid_value", "6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab", `"6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab"`},
	{"timestamp_value", "2026-05-01T12:00:00Z", `"2026-05-01T12:00:00Z"`},
	{"date_value", "2026-05-01", `"2026-05-01"`},
	{"duration_value", "1000000000", "1000000000"},
	{"bytes_value", "AQID", `"AQID"`},
	{"json_value", `["</textarea>", null]`, `["</textarea>", null]`},
	{"color_value", "deep-blue", `"deep-blue"`},
	{"part_value", `{"sku": "ABC-1", "weight": 1.5, "color": "red", "colors": []}`, `{"sku": "ABC-1", "weight": 1.5, "color": "red", "colors": []}`},
	{"plain_value", `{"count": 1}`, `{"count": 1}`},
}

// TestEnqueueForm has somebody fill in a form with a field of each type, with the keyboard alone, correct a mistake, and enqueue
// the event.
func TestEnqueueForm(t *testing.T) {
	t.Parallel()
	for _, withScript := range []bool{true, false} {
		t.Run(fmt.Sprintf("script %t", withScript), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			tb := open(t, serve(t, dashboard.Config{Pool: pool, Prefix: "/ops", Mask: alltypes.MaskPayload, AuthorizeEnqueue: anyTopic, Enqueue: topicForms(t)}))
			tb.Allow("status of 400")
			tb.Allow("status of 409")
			if !withScript {
				tb.NoScript()
			}
			well := func() {
				if withScript {
					tb.well()
				}
			}
			tb.visit("/")
			tb.tabTo(`nav a[href="/ops/enqueue"]`)
			tb.enter()
			require.Contains(t, tb.text("main li:nth-child(4)"), "catalog/sealed has sealed fields: only a program that has the keys can enqueue its events")
			require.Zero(t, value[int](tb, `document.querySelectorAll('main a[href$="sealed"]').length`))
			tb.visit("/enqueue/catalog/sealed")
			require.Equal(t, "This topic has sealed fields. Only a program that has the keys can enqueue its events.", tb.text(".stale"))
			well()
			tb.visit("/enqueue")
			tb.tabTo(`main a[href$="/required"]`)
			tb.enter()

			// The browser itself asks for what is missing.
			tb.tabTo(`main button`)
			tb.Press(enterKey)
			tb.Until(`document.activeElement.matches('input[name="p_string_value"]:invalid')`)
			tb.visit("/enqueue/catalog/required")
			require.Equal(t, "A JSON object with count, flag (optional).", strings.TrimPrefix(tb.text("#hint-p_plain_value"), "Plain holds nothing that has a rule. "))
			for _, f := range typed {
				tb.tabTo(fmt.Sprintf(`main [name="p_%s"]`, f.field))
				if f.field == "int32_value" {
					f.text = "many"
				}
				tb.Press(f.text)
				require.Equal(t, f.text, value[string](tb, "document.activeElement.value"))
			}
			tb.tabTo(`main [name="why"]`)
			tb.Press("ticket 812")
			tb.enter()
			require.Equal(t, "int32_value: it is not a number", tb.text(`[role="alert"]`))
			well()
			for _, f := range typed {
				tb.tabTo(fmt.Sprintf(`main [name="p_%s"]`, f.field))
				if f.field == "int32_value" {
					tb.Press(f.text) // the focus has marked what was there
				}
				require.Equal(t, f.text, value[string](tb, "document.activeElement.value"), "what was typed stays")
			}
			tb.tabTo(`main button`)
			tb.enter()
			require.Contains(t, tb.text(".preview"), "Enqueue one event of catalog/required.")
			require.Contains(t, tb.text(".facts"), "9007199254740993")
			well()
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.events"))
			tb.tabTo(`main button`)
			tb.enter()
			require.Equal(t, "Enqueued.", tb.text(".done"))
			require.Contains(t, tb.text(".payload"), `"</textarea>"`)
			var want []string
			for _, f := range typed {
				want = append(want, fmt.Sprintf("%q: %s", f.field, f.want))
			}
			require.JSONEq(t, "{"+strings.Join(want, ", ")+"}", pgtest.Value[string](t, pool, "SELECT payload::text FROM outbox.events"))
			require.Equal(t, "ada enqueue ticket 812 1", lastAudit(t, pool))

			// One field for all of a payload, and a mistake in it.
			tb.visit("/enqueue/catalog/optional")
			tb.tabTo("main textarea")
			tb.Press(`{"int32_value": "x"}`)
			tb.tabTo("main button")
			tb.enter()
			require.Equal(t, "field int32_value does not fit int32", tb.text(`[role="alert"]`))
			require.Equal(t, `{"int32_value": "x"}`, value[string](tb, `document.querySelector("textarea").value`))

			// A schema and an error with markup in them.
			tb.visit("/enqueue/catalog/hostile")
			tb.tabTo(`main input`)
			tb.Press(imageText)
			tb.enter()
			require.Contains(t, tb.text(`[role="alert"]`), script)
			require.Equal(t, imageText, value[string](tb, `document.querySelector("main input").value`))
			well()
		})
	}
}
