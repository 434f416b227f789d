package editor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

func TestHover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ src, want, on string }{
		"a key":                   {strings.Replace(shop, "tenant:", "ten|ant:", 1), "**tenant**\n\nPayload field with the tenant", "tenant"},
		"a value from a set":      {strings.Replace(shop, "log\n", "l|og\n", 1), "queue (default): one handler", "log"},
		"a template":              {strings.Replace(shop, "dedupe_key", "dedupe|_key", 1), "Rendered: `6f1c2d3e-", "dedupe_key"},
		"a literal of a template": {with(`        dedupe_key: "{shop_id}/pa|id-{channel}"`), "/paid-web`", `"{shop_id}/paid-{channel}"`},
		"a field of a template":   {strings.Replace(shop, "{shop_id}", "{sh|op_id}", 1), "**shop_id**: `uuid`", "shop_id"},
		"a tenant":                {strings.Replace(shop, "tenant: shop_id", "tenant: |shop_id", 1), "**shop_id**: `uuid`", "shop_id"},
		"a sensitive field":       {strings.Replace(shop, "mail: {", "ma|il: {", 1), "**mail**: `string`, sensitive", "mail"},
		"a built-in type":         {strings.Replace(shop, "int64", "int|64", 1), "exact in JSON", "int64"},
		"an enum":                 {strings.Replace(shop, "channel: channel", "channel: ch|annel", 1), "**channel**, enum: web, phone", "channel"},
		"a scalar":                {strings.Replace(shop, "order_id: {scalar", "order|_id: {scalar", 1), "**order_id**, scalar uuid", "order_id"},
		"a topic": {strings.Replace(shop, "  paid:", "  pa|id:", 1),
			"**shop/paid**\n\nVersion 1, delivery queue. An event that fails is tried 25 times, for up to 7h4m7s", "paid"},
		"a topic of a listener": {
			shop + "listeners:\n  ears: {topics: [shop/pla|ced]}\n", "**shop/placed**\n\nis emitted once per order.", "shop/placed"},
		"a retry of a topic":    {with("        retry: {max_att|empts: 20}"), "tried 20 times, for up to 4h34m7s", "max_attempts"},
		"a retry of defaults":   {strings.Replace(shop, "types:", "defaults:\n  re|try: {max_attempts: 20}\ntypes:", 1), "tried 20 times", "retry"},
		"a retry of a listener": {strings.Replace(shop, "        listeners: none\n", "", 1) + "listeners:\n  ears: {topics: [shop/placed], retry: {max|_attempts: 20}}\n", "tried 20 times", "max_attempts"},
		"a listener":            {shop + "listeners:\n  e|ars: {topics: [shop/placed], doc: hears.}\n", "**ears**, listener\n\nhears.", "ears"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, at := open(t, c.src)
			h := d.Hover(at)
			require.NotNil(t, h)
			require.Contains(t, h.Text, c.want)
			require.Equal(t, c.on, d.src[d.offset(h.Range.Start):d.offset(h.Range.End)])
		})
	}
	for name, src := range map[string]string{
		"a space": "version: \"1\"\n|\npackage: events\n", "a comment": "# com|ment\n", "an unknown key": "unkn|own: 1\n",
	} {
		d, at := open(t, src)
		require.Nil(t, d.Hover(at), name)
	}
}

// marked returns the text with each range in brackets.
func marked(d *Document, ranges []Range) string {
	var edits []Edit
	for _, r := range ranges {
		edits = append(edits, Edit{r, "<" + d.src[d.offset(r.Start):d.offset(r.End)] + ">"})
	}
	return edited(d.src, edits)
}

func TestDefinitionAndReferences(t *testing.T) {
	t.Parallel()
	src := shop + "listeners:\n  ears: {topics: [shop/placed]}\noperations:\n  buy: {outcomes: {done: [shop/placed, shop/paid]}}\n"
	for name, c := range map[string]struct {
		cursor, definition string
		places             int // with the declaration
	}{
		"a topic":            {"[shop/pl|aced]", "placed:\n        delivery", 3},
		"a type":             {"payload: {order_id: ord|er_id}", "order_id: {scalar", 3},
		"a field":            {"{shop|_id}/", "shop_id: uuid", 3},
		"a field of another": {"payload: {or|der_id:", "order_id: order_id}", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, at := open(t, strings.Replace(src, strings.Replace(c.cursor, "|", "", 1), c.cursor, 1))
			r, _, ok := d.Definition(at)
			require.True(t, ok)
			require.True(t, strings.HasPrefix(d.src[d.offset(r.Start):], c.definition), d.src[d.offset(r.Start):])
			all := d.References(at, true)
			require.Len(t, all, c.places, marked(d, all))
			require.Len(t, d.References(at, false), c.places-1)
		})
	}
	d, at := open(t, strings.Replace(src, "paid:\n", "pa|id:\n", 1))
	_, declared, ok := d.Definition(at)
	require.True(t, ok && declared)
	_, _, ok = d.Definition(Position{0, 2})
	require.False(t, ok)
}

func TestRename(t *testing.T) {
	t.Parallel()
	src := shop + "listeners:\n  ears: {topics: [shop/placed, \"shop/placed\"]}\noperations:\n  buy: {outcomes: {done: [shop/placed, shop/paid]}}\n"
	for name, c := range map[string]struct {
		cursor, name, want string
		count              int
	}{
		"a topic, where it is used": {"[shop/pl|aced,", "ordered", "{topics: [shop/ordered, \"shop/ordered\"]}\noperations:\n  buy: {outcomes: {done: [shop/ordered, shop/paid]}}", 4},
		"a field, in a template":    {"/{ord|er_id}", "ref", "dedupe_key: \"{shop_id}/{ref}\"", 2},
		"a field, as a tenant":      {"tenant: sh|op_id", "store_id", "tenant: store_id\n        dedupe_key: \"{store_id}/{order_id}\"", 3},
		"a type":                    {"channel: cha|nnel", "medium", "medium: {enum: [web, phone]}", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, at := open(t, strings.Replace(src, strings.Replace(c.cursor, "|", "", 1), c.cursor, 1))
			r, old, ok := d.Renamable(at)
			require.True(t, ok)
			require.Equal(t, old, d.src[d.offset(r.Start):d.offset(r.End)])
			edits, err := d.Rename(at, c.name)
			require.NoError(t, err)
			require.Len(t, edits, c.count)
			made := edited(d.src, edits)
			require.Contains(t, made, c.want)
			var before, after File
			require.Len(t, after.Open(made, optionsOf("x")).Findings(), len(before.Open(d.src, optionsOf("x")).Findings()))
		})
	}
	for name, c := range map[string]struct{ cursor, name string }{
		"a name that is taken":    {"pa|id:", "placed"},
		"a name that is not one":  {"pa|id:", "Paid"},
		"a built-in type":         {"channel: cha|nnel", "uuid"},
		"something without names": {"ver|sion:", "x"},
		"a listener":              {"e|ars:", "x"},
	} {
		d, at := open(t, strings.Replace(src, strings.Replace(c.cursor, "|", "", 1), c.cursor, 1))
		_, err := d.Rename(at, c.name)
		require.Error(t, err, name)
	}
}

// A topic that the lock has keeps its old name in renamed_from, in each way to write a topic.
func TestRenameOfAFrozenTopic(t *testing.T) {
	t.Parallel()
	const head = "version: \"1\"\npackage: events\nnamespaces:\n  shop:\n    topics:\n"
	for name, c := range map[string]struct{ topic, want string }{
		"block":              {"      paid:\n        payload: {id: uuid}\n", "      settled:\n        renamed_from: [paid]\n        payload: {id: uuid}\n"},
		"flow":               {"      paid: {payload: {id: uuid}}\n", "      settled: {renamed_from: [paid], payload: {id: uuid}}\n"},
		"a list in brackets": {"      paid:\n        renamed_from: [payed]\n        payload: {id: uuid}\n", "      settled:\n        renamed_from: [payed, paid]\n"},
		"a list of lines":    {"      paid:\n        renamed_from:\n          - payed\n        payload: {id: uuid}\n", "          - payed\n          - paid\n"},
		"its old name":       {"      paid:\n        renamed_from: [settled]\n        payload: {id: uuid}\n", "      settled:\n        renamed_from: [paid]\n"},
		"with CRLF":          {"      paid:\r\n        payload: {id: uuid}\r\n", "      settled:\r\n        renamed_from: [paid]\r\n        payload"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := head + c.topic
			if strings.Contains(src, "\r\n") {
				src = strings.ReplaceAll(head, "\n", "\r\n") + c.topic
			}
			frozen, err := generator.Freeze([]byte(src), nil, nil, optionsOf("outbox.yaml"))
			require.NoError(t, err)
			o := optionsOf("outbox.yaml")
			o.Lock = frozen.Lock
			var f File
			d := f.Open(src, o)
			edits, err := d.Rename(Position{5, 7}, "settled")
			require.NoError(t, err)
			made := edited(d.src, edits)
			require.Contains(t, made, c.want)
			require.Empty(t, f.Open(made, o).Findings())
		})
	}
}

func TestGoNames(t *testing.T) {
	t.Parallel()
	d, at := open(t, strings.Replace(shop, "revision:", "rev|ision:", 1))
	require.Equal(t, []string{"Paid.Revision"}, d.Go(at))
	files, err := generator.Generate([]byte(d.src), optionsOf("outbox.yaml"))
	require.NoError(t, err)
	found := make(map[string]string)
	for _, name := range []string{"Paid", "PaidTopic", "EnqueuePaid", "Paid.Revision", "ShopHandlers", "Channel"} {
		for _, file := range files {
			if r, ok := FindGo(file.Content, "outbox.yaml", name); ok {
				found[name] = file.Name
				code := newText(string(file.Content))
				_, last, _ := strings.Cut("."+name, ".")
				require.Equal(t, last[strings.LastIndex(last, ".")+1:], code.of(span{code.offset(r.Start), code.offset(r.End)}))
				_, ok = FindGo(file.Content, "other.yaml", name)
				require.False(t, ok, "of another YAML")
			}
		}
	}
	require.Equal(t, map[string]string{
		"Paid": "shop.paid.outbox.go", "PaidTopic": "shop.paid.outbox.go", "EnqueuePaid": "shop.paid.outbox.go",
		"Paid.Revision": "shop.paid.outbox.go", "ShopHandlers": "shop.outbox.go", "Channel": "shared-types.outbox.go",
	}, found)
}

func TestOutlineFoldsAndTokens(t *testing.T) {
	t.Parallel()
	var f File
	d := f.Open("# one\n# two\n"+with(`        dedupe_key: "{shop_id}/é-{nope}"`)+"listeners:\n  ears: {topics: [shop/placed]}\n", optionsOf("outbox.yaml"))
	var names []string
	var list func(symbols []Symbol, indent string)
	list = func(symbols []Symbol, indent string) {
		for _, s := range symbols {
			names = append(names, indent+s.Name)
			require.False(t, before(s.Range.End, s.NameRange.End), s.Name)
			list(s.Children, indent+" ")
		}
	}
	list(d.Outline(), "")
	require.Equal(t, []string{
		"types", " channel", " order_id", "namespaces", " shop", "  placed", "   order_id", "  paid", "   shop_id", "   order_id",
		"   channel", "   revision", "   note", "   mail", "   paid_at", "listeners", " ears",
	}, names)
	folds := d.Folds()
	require.Contains(t, folds, Fold{0, 1, true})
	require.Contains(t, folds, Fold{4, 6, false}, "types")
	var tokens []string
	for _, token := range d.Tokens() {
		tokens = append(tokens, string(token.Kind)+" "+d.of(span{d.offset(token.Range.Start), d.offset(token.Range.End)}))
	}
	require.Equal(t, []string{"operator {", "property shop_id", "operator }", "operator /", "string é-", "operator {", "operator }"}, tokens)
}

func TestFormatIsThatOfFmt(t *testing.T) {
	t.Parallel()
	formatted := 0
	for path, src := range sources(t) {
		made, err := generator.Format([]byte(src), path)
		var f File
		edits := f.Open(src, optionsOf(path)).Format()
		if err != nil || string(made) == src {
			require.Empty(t, edits, path)
			continue
		}
		require.Equal(t, string(made), edited(src, edits), path)
		formatted++
	}
	require.Greater(t, formatted, 20)
}
