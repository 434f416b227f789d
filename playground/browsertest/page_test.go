package browsertest

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/browser"
)

const shop = `version: "1"
package: events
namespaces:
  shop:
    topics:
      order_placed:
        doc: is emitted once per order.
        tenant: shop_id
        dedupe_key: "{shop_id}/{order_id}"
        payload: {shop_id: uuid, order_id: uuid}
`

const typed = `version: "1"
package: events
namespaces: {shop: {topics: {order_placed: {dedupe_key: "{order_id}", payload: {order_id: uuid}}}}}
`

// fragment returns the part of an address that has a YAML, as the page writes it.
func fragment(t testing.TB, yaml, older string) string {
	text, err := json.Marshal(map[string]string{"yaml": yaml, "older": older})
	require.NoError(t, err)
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.BestSpeed)
	require.NoError(t, err)
	_, err = w.Write(text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return "#1." + base64.RawURLEncoding.EncodeToString(packed.Bytes())
}

// shared returns the YAML in the address of a tab.
func (tb *tab) shared() string {
	tb.T.Helper()
	packed, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(value[string](tb, "location.hash"), "#1."))
	require.NoError(tb.T, err)
	text, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	require.NoError(tb.T, err)
	var texts struct{ YAML, Older string }
	require.NoError(tb.T, json.Unmarshal(text, &texts))
	return texts.YAML
}

// after puts the cursor behind a text that the editor has in one line.
func (tb *tab) after(text string) {
	tb.T.Helper()
	require.True(tb.T, value[bool](tb, fmt.Sprintf(`(() => {
		document.querySelector("#editor .cm-content").focus();
		for (const line of document.querySelectorAll("#editor .cm-line")) {
			let at = line.textContent.indexOf(%[1]q);
			if (at < 0) continue;
			at += %[1]q.length;
			const walk = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
			for (let n = walk.nextNode(); n; n = walk.nextNode()) {
				if (at <= n.length) { getSelection().collapse(n, at); return true; }
				at -= n.length;
			}
		}
		return false;
	})()`, text)), text)
}

// What a reader does: the YAML is typed, broken, mended by the quick fix, shared, and loaded again from its address.
func TestTypeBreakMendShare(t *testing.T) {
	t.Parallel()
	tb := open(t, "")
	tb.untilText("#count", "No findings")

	// Typed over the example. Escape closes what the editor proposes.
	tb.Click("#editor .cm-content")
	tb.Press("a", chromedp.KeyModifiers(kb.ModifierCtrl))
	tb.Press(kb.Delete)
	for line := range strings.Lines(typed) {
		tb.Press(strings.TrimSuffix(line, "\n"))
		tb.Press(kb.Escape)
		tb.enter()
	}
	tb.untilText("#count", "No findings")
	tb.untilText("#viewer", "OrderPlaced")

	tb.after("{order_id")
	tb.Press(kb.Backspace)
	tb.untilText("#count", "1 finding")
	tb.untilText("#findings .message", `unknown field "order_i"`)
	tb.Until(`document.querySelector("#editor .cm-lintRange-error")?.textContent === '"{order_i}"'`)
	tb.untilText("#note", "needs a YAML without errors")
	require.Contains(t, value[string](tb, `document.querySelector("#viewer").textContent`), "OrderPlaced", "the last good code stays")

	// The explanation of the rule.
	tb.Click("#findings summary")
	tb.untilText("#findings details pre", "dedupe_key:")

	tb.untilText("#findings .fix", "Replace with order_id")
	tb.Click("#findings .fix")
	tb.untilText("#count", "No findings")
	tb.Until(`!document.querySelector(".cm-lintRange-error")`)

	tb.Click("#share")
	tb.untilText("#status", "address of this page")
	require.Equal(t, typed, tb.shared())
	again := open(t, value[string](tb, "location.hash"))
	again.untilText("#editor .cm-content", "order_placed")
	again.untilText("#count", "No findings")
	again.Click("#share")
	again.untilText("#status", "address of this page")
	require.Equal(t, typed, again.shared())
}

// Each tab shows what the command of its name makes.
func TestTabs(t *testing.T) {
	t.Parallel()
	published := strings.Replace(shop, "        tenant:", "        delivery: log\n        listeners: none\n        partition_key: \"{order_id}\"\n"+
		"        publish: {kafka: {topic: shop.orders}}\n        tenant:", 1)
	tb := open(t, fragment(t, published, strings.Replace(published, "order_id: uuid", "order_id: string", 1)))
	for _, c := range []struct{ view, file, text string }{
		{"go", "shop.order_placed.outbox.go", "func EnqueueOrderPlaced("},
		{"sql", "0001_outbox_events.up.sql", "CREATE SCHEMA IF NOT EXISTS \"outbox\""},
		{"schema", "shop.order_placed.v1.schema.json", "$schema"},
		{"asyncapi", "asyncapi.json", "\"asyncapi\": \"3.0.0\""},
	} {
		tb.Click("#tab-" + c.view)
		tb.Until(fmt.Sprintf(`document.querySelector("#file").value === %q`, c.file))
		tb.Until(fmt.Sprintf(`document.querySelector("#tab-%s").getAttribute("aria-selected") === "true"`, c.view))
		tb.untilText("#viewer", c.text)
	}
	tb.Click("#tab-breaking")
	tb.untilText("#verdict", "change")
	tb.untilText("#changes", "change-field-type")
	tb.Click("#keep")
	tb.untilText("#verdict", "No breaking change.")

	// With the keyboard.
	tb.Click("#tab-breaking")
	tb.Press(kb.Home)
	tb.Until(`document.activeElement.id === "tab-go" && document.body.dataset.view === "go"`)
	tb.Press(kb.ArrowLeft)
	tb.Until(`document.activeElement.id === "tab-breaking"`)
}

// Completion and hover have the texts of the language server.
func TestCompletionAndHover(t *testing.T) {
	t.Parallel()
	tb := open(t, fragment(t, shop, ""))
	tb.after("{shop_id}/{order_id")
	for range "order_id" {
		tb.Press(kb.Backspace)
	}
	tb.Press("o")
	tb.untilText(".cm-tooltip-autocomplete:not(.cm-tooltip-autocomplete-disabled) [aria-selected=true]", "order_id")
	tb.Until(`performance.now() - (window.since ??= performance.now()) > 100`) // the editor ignores an Enter that comes sooner
	tb.enter()
	tb.untilText("#count", "No findings")
	tb.Click("#share")
	tb.untilText("#status", "address of this page")
	require.Equal(t, shop, tb.shared())

	type place struct{ X, Y float64 }
	at := value[place](tb, `(() => {
		for (const e of document.querySelectorAll("#editor .cm-line span")) {
			if (e.textContent !== "dedupe_key") continue;
			const r = e.getClientRects()[0];
			return {X: r.x + r.width / 2, Y: r.y + r.height / 2};
		}
	})()`)
	tb.Do(chromedp.MouseEvent("mouseMoved", at.X, at.Y))
	tb.untilText(".hover", "Template of the idempotency key")
}

// accessible requires that axe finds nothing serious in the page as it is.
func (tb *tab) accessible() {
	tb.T.Helper()
	require.Empty(tb.T, tb.Violations("", "serious", "critical"), "serious findings of axe")
}

// The page is accessible in light and dark, on a screen and on a phone, with and without findings, and in each tab.
func TestAccessible(t *testing.T) {
	t.Parallel()
	require.NotEmpty(t, browser.Axe(), "no axe-core in bin: `tools/need.sh axe` fetches it")
	for _, width := range []int{1280, 390} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			t.Parallel()
			tb := open(t, fragment(t, shop, shop))
			for _, scheme := range []string{"light", "dark"} {
				tb.Look(scheme, width, 800)
				if width < 500 {
					tb.Click("#tab-yaml")
				}
				tb.after("tenant: shop_id")
				tb.Press("x")
				tb.untilText("#count", "1 finding")
				if width < 500 {
					require.True(t, value[bool](tb, `document.querySelector("#yaml").offsetWidth > 300 &&
						document.querySelector("#output").offsetWidth === 0`))
				}
				tb.Click("#findings summary")
				tb.untilText("#findings details pre", "tenant:")
				tb.accessible()
				tb.Click("#findings .fix")
				tb.untilText("#count", "No findings")
				tb.Click("#tab-go")
				tb.untilText("#viewer", "package events")
				tb.Until(`!document.querySelector("#note").textContent.includes("errors")`)
				tb.accessible()
				tb.Click("#tab-breaking")
				tb.untilText("#verdict", "No breaking change.")
				tb.accessible()
				require.True(t, value[bool](tb, `document.documentElement.scrollWidth <= innerWidth`), "the page scrolls sideways")
			}
		})
	}
}

// The page works from a server, too, and asks it for nothing else.
func TestFromAServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.FileServer(http.Dir(os.Getenv(folder))))
	t.Cleanup(server.Close)
	tb := openAt(t, server.URL+"/", fragment(t, shop, ""))
	tb.untilText("#count", "No findings")
	tb.untilText("#viewer", "package events")
}

// An address that was cut off says so, and one of a bomb is not unpacked.
func TestDamagedAddresses(t *testing.T) {
	t.Parallel()
	whole := fragment(t, shop, "")
	tb := open(t, whole[:len(whole)/2])
	for name, bad := range map[string]string{
		"cut off": whole[:len(whole)/2], "not base64": "#1.%%%", "not JSON": "#1.AA", "a bomb": fragment(t, strings.Repeat(" ", 8<<20), ""),
	} {
		value[string](tb, fmt.Sprintf(`document.querySelector("#status").textContent = "", location.hash = "", location.hash = %q`, bad))
		tb.untilText("#status", "no text that can be read")
		require.Contains(t, value[string](tb, `document.querySelector("#editor .cm-content").textContent`), "order_placed", name)
	}
	value[string](tb, fmt.Sprintf("location.hash = %q", fragment(t, "<img src=x onerror=alert(1)>: </script>", "")))
	tb.untilText("#editor .cm-content", "<img")
	tb.untilText("#count", "finding")
}
