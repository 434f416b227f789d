package browsertest

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

var screenshots = flag.String("screenshots", "", "write the screenshots of the documentation into this `folder`")

// TestScreenshots takes the pictures of README and docs/operate/dashboard.md.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("run by make screenshots")
	}
	pool := demo(t)
	url := serve(t, dashboard.Config{Pool: pool, Title: "production", Mask: maskDemo, TraceURL: "https://traces.example.com/trace/{trace_id}", Prometheus: lastHour(t), AuthorizeForget: anybody})
	dead := pgtest.Value[string](t, pool, "SELECT id::text FROM outbox.dead_letters WHERE topic = 'order_placed' ORDER BY no LIMIT 1")
	for _, shot := range []struct {
		name, path    string
		width, height int
		both          bool
	}{
		{"overview", "/", 1280, 0, true},
		{"topic", "/topics/billing/partner_webhook", 1280, 0, false},
		{"event", "/events/" + dead, 1280, 0, true},
		{"dead", "/dead", 1280, 0, true},
		{"listener", "/listeners/fraud_detection", 1280, 0, true},
		{"limits", "/limits", 1280, 0, true},
		{"phone", "/", 390, 844, false},
		{"life", "/life?entity=order/4711", 1280, 0, true},
		{"forget", "/life?entity=order/4711", 1280, 0, true},
	} {
		if shot.name == "life" {
			seedOrder(t, pool) // the overview is the same without it
		}
		for _, scheme := range []string{"light", "dark"} {
			if scheme == "dark" && !shot.both {
				continue
			}
			tb := open(t, url)
			tb.Look(scheme, shot.width, max(shot.height, 800))
			freshen(t, pool)
			tb.visit(shot.path)
			tb.Until(`document.readyState === "complete" && document.querySelector("#live .read")`)
			if shot.name == "forget" {
				tb.follow(`form[action="/forget"] button`)
				tb.Click(`input[name="undelivered"]`)
				tb.follow("main button")
			}
			// The font of most machines is not on one without a screen.
			value[bool](tb, `document.body.style.fontFamily = "Inter, system-ui, sans-serif", document.fonts.ready.then(function () { return true; })`)
			name := "dashboard-" + shot.name
			if scheme == "dark" {
				name += "-dark"
			}
			tb.shoot(filepath.Join(*screenshots, name+".png"), shot.height)
		}
	}
}

// shoot writes a picture of the page; height 0 means all of it.
func (tb *tab) shoot(file string, height int) {
	tb.T.Helper()
	type size struct{ W, H float64 }
	s := value[size](tb, `({W: document.documentElement.clientWidth, H: document.documentElement.scrollHeight})`)
	if height > 0 {
		s.H = float64(height)
	}
	yes := true
	shot, err := chromedp.Call(tb.Ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{
		Format: page.CaptureScreenshotFormatPng, CaptureBeyondViewport: &yes, Clip: &page.Viewport{Width: s.W, Height: s.H, Scale: 1}})
	require.NoError(tb.T, err)
	small, err := reduced(shot.Data)
	require.NoError(tb.T, err)
	require.NoError(tb.T, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(tb.T, os.WriteFile(file, small, 0o644))
}

// reduced makes a picture smaller: it gets a palette of 256 colors.
func reduced(shot []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return nil, err
	}
	counts := make(map[color.RGBA]int)
	bounds := full.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(full.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	palette := paletteOf(counts)
	indexes := make(map[color.RGBA]uint8, len(counts))
	for c := range counts {
		indexes[c] = uint8(palette.Index(c))
	}
	out := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			out.SetColorIndex(x, y, indexes[at(x, y)])
		}
	}
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, out)
	return b.Bytes(), err
}

// paletteOf adds the color that is missed most, by its distance and its number of pixels, until the palette is full. The most
// frequent colors alone would leave out a small green dot.
func paletteOf(counts map[color.RGBA]int) color.Palette {
	colors := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], int(a.R)-int(b.R), int(a.G)-int(b.G), int(a.B)-int(b.B))
	})
	missed := make([]int, len(colors)) // the square of the distance to the palette
	for i := range missed {
		missed[i] = math.MaxInt32
	}
	var palette color.Palette
	for range min(256, len(colors)) {
		next, most := 0, -1
		for i, c := range colors {
			if loss := missed[i] * counts[c]; loss > most {
				next, most = i, loss
			}
		}
		chosen := colors[next]
		palette = append(palette, chosen)
		for i, c := range colors {
			r, g, b := int(c.R)-int(chosen.R), int(c.G)-int(chosen.G), int(c.B)-int(chosen.B)
			missed[i] = min(missed[i], r*r+g*g+b*b)
		}
	}
	return palette
}
