package main

import (
	"errors"
	"flag"
	"slices"
	"strings"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/operator/terminal"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	flags          *flag.FlagSet
	file, upstream string
	changes        []func(*config.Config) // what the other flags say
}

// newServeOptions declares the flags. The usage text describes them.
func newServeOptions(flags *flag.FlagSet) *serveOptions {
	o := &serveOptions{flags: flags}
	o.declareShared()
	o.declare("listen", func(c *config.Config, value string) { c.Listen = value })
	o.declare("admin", func(c *config.Config, value string) { c.Admin = value })
	o.declare("log-format", func(c *config.Config, value string) { c.Log.Format = config.LogFormat(value) })
	return o
}

// erasOf are the eras that clients are offered.
func erasOf(word string) []string {
	switch word {
	case "auto":
		return nil
	case "both":
		return []string{"legacy", "modern"}
	}
	return []string{word}
}

// declareShared declares the flags that stdio has as well.
func (o *serveOptions) declareShared() {
	o.flags.StringVar(&o.file, "config", "", "")
	o.flags.StringVar(&o.upstream, "upstream", "", "")
	o.declare("store", func(c *config.Config, value string) { c.Store = value })
	o.declare("offer", func(c *config.Config, value string) { c.Upstreams[0].Eras = erasOf(value) })
	o.declare("log-level", func(c *config.Config, value string) { c.Log.Level = config.LogLevel(value) })
	o.flags.Func("header", "", o.addHeader)
	o.flags.Func("grace", "", func(text string) error {
		grace, err := config.Auto, error(nil)
		if text != "auto" {
			grace, err = time.ParseDuration(text)
		}
		if err != nil {
			return errors.New("it is auto, or a number with a unit, such as 300ms, 5s or 1h30m")
		}
		o.changes = append(o.changes, func(c *config.Config) { c.Upstreams[0].Defaults.Grace = grace })
		return nil
	})
}

// addHeader takes a header that is sent with each request to the server.
func (o *serveOptions) addHeader(text string) error {
	name, value, ok := strings.Cut(text, ":")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return errors.New(`it is "Name: value"`)
	}
	o.changes = append(o.changes, func(c *config.Config) {
		u := c.Upstreams[0]
		if u.Headers == nil {
			u.Headers = make(map[string]string)
		}
		u.Headers[name] = strings.TrimSpace(value)
	})
	return nil
}

// declare declares a flag that changes the configuration.
func (o *serveOptions) declare(name string, change func(c *config.Config, value string)) {
	o.flags.Func(name, "", func(value string) error {
		o.changes = append(o.changes, func(c *config.Config) { change(c, value) })
		return nil
	})
}

// loadConfig makes the configuration that the flags describe: that of the file or of the one
// upstream, with the given flags over it.
func (o *serveOptions) loadConfig() (*config.Config, error) {
	var cfg *config.Config
	switch {
	case (o.file == "") == (o.upstream == ""):
		return nil, terminal.UsageError("give either --config FILE or --upstream URL")
	case o.file != "":
		var err error
		if cfg, err = config.Load(o.file); err != nil {
			return nil, err
		}
	default:
		cfg = config.FromFlags(o.upstream)
	}
	if err := o.overrideConfig(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// overrideConfig lays the given flags over the configuration. A mistake that Validate finds then is
// a mistake of the command line.
func (o *serveOptions) overrideConfig(cfg *config.Config) error {
	var wrong error
	o.flags.Visit(func(f *flag.Flag) {
		if o.file != "" && slices.Contains([]string{"grace", "era", "offer", "without-tasks", "header"}, f.Name) {
			wrong = terminal.UsageError("--" + f.Name + " does not go with --config; set it in the file")
		}
	})
	if wrong != nil {
		return wrong
	}
	for _, change := range o.changes {
		change(cfg)
	}
	if err := cfg.Validate(); err != nil {
		return terminal.UsageError(err.Error())
	}
	return nil
}
