package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// readAssets puts a hash of its content into the name of each script and style sheet, so that browsers may keep them.
func (v *view) readAssets() {
	files, _ := fs.Glob(assetFiles, "assets/*")
	for _, file := range files {
		kind := map[string]string{
			".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
		}[path.Ext(file)]
		if kind == "" {
			continue // licences and checksums
		}
		content, err := assetFiles.ReadFile(file)
		if err != nil {
			continue
		}
		sum := sha256.Sum256(content)
		name, ext := strings.TrimSuffix(path.Base(file), path.Ext(file)), path.Ext(file)
		hashed := name + "." + hex.EncodeToString(sum[:6]) + ext
		v.assets[hashed] = asset{kind, content}
		v.names[name+ext] = hashed
	}
}

func (p *Page) serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := p.view.assets[r.PathValue("file")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	w.Header().Set("Content-Type", a.kind)
	_, _ = w.Write(a.content)
}
