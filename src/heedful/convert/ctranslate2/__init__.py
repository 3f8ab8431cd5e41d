"""CTranslate2: conversion of weights and the cached conversion."""
