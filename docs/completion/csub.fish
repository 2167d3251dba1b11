# SPDX-License-Identifier: Apache-2.0
complete --command csub --no-files --arguments "(env _CSUB_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=(commandline -cp) csub)" --condition "env _CSUB_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args _TYPER_COMPLETE_ARGS=(commandline -cp) csub"
