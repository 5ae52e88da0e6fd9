package main

import (
	"errors"
	"flag"
	"time"

	"taskgate/gateway/config"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	flags               *flag.FlagSet
	file, upstream      string
	listen, admin       string
	store               string
	grace               time.Duration
	logFormat, logLevel string
}

// newServeOptions declares the flags. The usage text describes them.
func newServeOptions(flags *flag.FlagSet) *serveOptions {
	o := &serveOptions{flags: flags}
	flags.StringVar(&o.file, "config", "", "")
	flags.StringVar(&o.upstream, "upstream", "", "")
	flags.StringVar(&o.listen, "listen", "", "")
	flags.StringVar(&o.admin, "admin", "", "")
	flags.StringVar(&o.store, "store", "", "")
	o.declareGrace()
	flags.StringVar(&o.logFormat, "log-format", "", "")
	flags.StringVar(&o.logLevel, "log-level", "", "")
	return o
}

func (o *serveOptions) declareGrace() {
	o.flags.Func("grace", "", func(text string) (err error) {
		if o.grace = config.Auto; text == "auto" {
			return nil
		}
		if o.grace, err = time.ParseDuration(text); err != nil {
			return errors.New("it is auto, or a number with a unit, such as 300ms, 5s or 1h30m")
		}
		return nil
	})
}

// usageError is a mistake in the command line, as opposed to one in a file.
type usageError string

func (e usageError) Error() string { return string(e) }

// loadConfig makes the configuration that the flags describe: that of the file or of the one
// upstream, with the given flags over it.
func (o *serveOptions) loadConfig() (*config.Config, error) {
	var cfg *config.Config
	switch {
	case (o.file == "") == (o.upstream == ""):
		return nil, usageError("give either --config FILE or --upstream URL")
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
		switch f.Name {
		case "listen":
			cfg.Listen = o.listen
		case "admin":
			cfg.Admin = o.admin
		case "store":
			cfg.Store = o.store
		case "log-format":
			cfg.Log.Format = config.LogFormat(o.logFormat)
		case "log-level":
			cfg.Log.Level = config.LogLevel(o.logLevel)
		case "grace":
			if o.file != "" {
				wrong = usageError("--grace goes with --upstream; in a file it is set per upstream and tool")
				return
			}
			cfg.Upstreams[0].Defaults.Grace = o.grace
		}
	})
	if wrong == nil && cfg.Validate() != nil {
		wrong = usageError(cfg.Validate().Error())
	}
	return wrong
}
