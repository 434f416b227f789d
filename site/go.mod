module github.com/outboxgen/outboxgen/site

go 1.26.0

// The packages of npm are no Go.
ignore ./node_modules

require (
	github.com/chromedp/chromedp v0.23.0
	github.com/stretchr/testify v1.12.1
)

require github.com/chromedp/cdproto v0.159.0 // indirect

require (
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	github.com/outboxgen/outboxgen/internal/testing/browser v0.0.0
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/outboxgen/outboxgen/internal/testing/browser => ../internal/testing/browser
