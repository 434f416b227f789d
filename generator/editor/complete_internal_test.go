package editor

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const shop = `version: "1"
package: events
types:
  channel: {enum: [web, phone]}
  order_id: {scalar: uuid}
namespaces:
  shop:
    topics:
      placed:
        delivery: log
        listeners: none
        doc: is emitted once per order.
        payload: {order_id: order_id}
      paid:
        tenant: shop_id
        dedupe_key: "{shop_id}/{order_id}"
        payload:
          shop_id: uuid
          order_id: order_id
          channel: channel
          revision: int64
          note: string?
          mail: {type: string, sensitive: true}
          paid_at: timestamp
`

// with returns shop with a line of the topic paid replaced, or added before its payload.
func with(line string) string {
	key, _, _ := strings.Cut(strings.TrimSpace(line), ":")
	lines := strings.Split(shop, "\n")
	paid := slices.Index(lines, "      paid:")
	for i := paid; i < len(lines); i++ {
		if strings.HasPrefix(strings.TrimSpace(lines[i]), key+":") || lines[i] == "        payload:" {
			if lines[i] == "        payload:" {
				lines = slices.Insert(lines, i, "")
			}
			lines[i] = line
			break
		}
	}
	return strings.Join(lines, "\n")
}

// Each line: the text, what must be offered, what must not, and what the text becomes with the first of the offered.
func TestComplete(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		src        string
		want, none []string
		made       string
	}{
		"keys of the file":           {"version: \"1\"\n|", []string{"package", "types", "namespaces"}, []string{"version", "topics"}, "package: "},
		"keys of an empty file":      {"|", []string{"version", "package"}, nil, "version: "},
		"a key that is being typed":  {with("        ded|"), []string{"partition_key", "fairness"}, []string{"tenant", "payload"}, ""},
		"a key of an empty line":     {with("        |"), []string{"partition_key", "entity", "limits"}, []string{"tenant", "dedupe_key", "payload"}, ""},
		"a key before its colon":     {with("        wa|: none"), []string{"wake"}, nil, "wake: none"},
		"a mapping in block style":   {with("        ret|"), []string{"retry"}, nil, "retry:\n"},
		"keys in brackets":           {with("        retry: {max_attempts: 3, |}"), []string{"base_delay", "max_delay"}, []string{"max_attempts"}, "3, base_delay: }"},
		"keys in open brackets":      {with("        retry: {ma|"), []string{"max_attempts"}, []string{"tenant"}, "{max_attempts: \n"},
		"keys on a line of its own":  {with("        retry:\n          |"), []string{"max_attempts"}, []string{"tenant"}, ""},
		"keys of a limit":            {with("        limits:\n          - con|"), []string{"concurrency"}, []string{"tenant"}, "- concurrency: "},
		"keys of a limit in braces":  {with("        limits: [{|"), []string{"per", "rate"}, []string{"tenant"}, ""},
		"values":                     {with("        delivery: |"), []string{"queue", "log"}, nil, "delivery: queue"},
		"a value that is typed":      {with("        delivery: lo|"), []string{"log"}, nil, ""},
		"true and false":             {with("        publish: {kafka: {topic: x}, tombstone: |}"), []string{"true", "false"}, nil, "true}"},
		"types":                      {strings.Replace(shop, "revision: int64", "revision: |", 1), []string{"string", "int64", "channel", "order_id"}, nil, ""},
		"types in a list":            {strings.Replace(shop, "revision: int64", `revision: "[]ch|"`, 1), []string{"channel"}, nil, ""},
		"types in a mapping":         {strings.Replace(shop, "revision: int64", "revision: {type: ch|", 1), []string{"channel", "uuid"}, nil, ""},
		"keys of a field":            {strings.Replace(shop, "revision: int64", "revision: {type: int64, |", 1), []string{"min", "doc"}, []string{"type"}, ""},
		"a tenant":                   {with("        tenant: |"), []string{"shop_id", "order_id"}, []string{"channel", "note", "mail", "revision"}, "tenant: shop_id"},
		"fields in a template":       {with(`        dedupe_key: "{shop_id}/{or|"`), []string{"order_id", "channel", "revision"}, []string{"note", "mail", "paid_at"}, `/{order_id}"`},
		"fields in closed braces":    {with(`        dedupe_key: "{|}/x"`), []string{"shop_id"}, nil, `"{shop_id}/x"`},
		"a template from the start":  {with(`        partition_key: |`), []string{"{shop_id}"}, []string{"{mail}"}, `partition_key: "{shop_id}"`},
		"what a limit is per":        {with("        limits: [{per: |}]"), []string{"tenant", "destination", "{shop_id}"}, nil, "per: tenant}"},
		"the version of an entity":   {with(`        entity: {type: order, id: "{order_id}", version: |}`), []string{"revision"}, []string{"shop_id"}, ""},
		"a header":                   {with(`        publish: {kafka: {topic: x}, headers: {a: "{ch|"}}`), []string{"channel"}, nil, ""},
		"topics of a listener":       {shop + "listeners:\n  ears: {topics: [|]}\n", []string{"shop/placed"}, []string{"shop/paid"}, "[shop/placed]"},
		"topics of a listener, item": {shop + "listeners:\n  ears:\n    topics:\n      - shop/|\n", []string{"shop/placed"}, []string{"shop/paid"}, "- shop/placed\n"},
		"topics of an operation":     {shop + "operations:\n  pay:\n    outcomes:\n      done: [shop/paid, |]\n", []string{"shop/placed"}, []string{"shop/paid"}, ""},
		"an example of a duration":   {with("        lease: |"), []string{"30s"}, nil, "lease: 30s"},
		"in a comment":               {with("        # ten|"), nil, nil, ""},
		"in a text":                  {with("        doc: >\n          ten|"), nil, nil, ""},
		"names of the user":          {strings.Replace(shop, "  shop:", "  |", 1), nil, nil, ""},
		"behind a value":             {with("        tenant: shop_id |"), nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, at := open(t, c.src)
			var labels []string
			for _, completion := range d.Complete(at) {
				labels = append(labels, completion.Label)
			}
			if c.want == nil && c.none == nil {
				require.Empty(t, labels)
				return
			}
			require.Subset(t, labels, c.want)
			for _, none := range c.none {
				require.NotContains(t, labels, none)
			}
			for _, completion := range d.Complete(at) {
				if completion.Label == c.want[0] || completion.Label == strings.Trim(c.want[0], "{}") {
					require.Contains(t, edited(d.src, []Edit{completion.Edit}), c.made)
				}
			}
		})
	}
}

// While the text cannot be read, the names are those of the last one that could.
func TestLastGoodTextStays(t *testing.T) {
	t.Parallel()
	var f File
	f.Open(shop, optionsOf("outbox.yaml")).Findings()
	src := "types: {\n" + strings.Replace(with(`        dedupe_key: "{`), "payload:", "payload", 2)
	d := f.Open(src, optionsOf("outbox.yaml"))
	require.False(t, d.check().readable)
	var labels []string
	for _, c := range d.Complete(d.position(strings.Index(src, `"{`) + 2)) {
		labels = append(labels, c.Label)
	}
	require.Contains(t, labels, "channel")
	h := d.Hover(d.position(strings.Index(src, "dedupe_key") + 2))
	require.NotNil(t, h)
	require.Contains(t, h.Text, "6f1c2d3e-0a4b-4c5d-8e9f-a1b2c3d4e5f6/6f1c2d3e-0a4b-4c5d-8e9f-a1b2c3d4e5f6")
	require.Empty(t, d.Format())
	_, err := d.Rename(Position{5, 3}, "other")
	require.Error(t, err)
}
